"""What the subcommands that run vLLM share."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import packages_distributions, version

from turbospec.errors import UserError


def installed_vllm() -> str:
    """The version of vLLM, whatever its distribution is called.

    Raises:
        UserError: it is not installed beside us.
    """
    if not (names := packages_distributions().get("vllm")):
        raise UserError(f"vLLM is not installed for {sys.executable}; run this with the Python that has it")
    return version(names[0])


@contextmanager
def interrupted_by_signals() -> Generator[None]:
    """To be told to end is like Ctrl-C: the servers are stopped first."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
