"""Says on stderr that kernels are being compiled: the first run would otherwise be silent for about a minute."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from turbospec.cli.console import stderr

MESSAGE = "compiling kernels (first run only, about a minute)"


def say_when_compiling(processes: int = 1) -> None:
    """Print `MESSAGE`, once, when kernels are compiled; nothing where all of them are cached.

    Args:
        processes: that simulate. Several are workers, whose compiling this process does not see; the message then
            depends on whether the simulator has compiled kernels on disk.
    """
    from turbospec.runtime.kernels import kernels_are_cached, on_first_compilation

    on_first_compilation(_say)
    simulator = find_spec("turbospec_sim") if processes > 1 else None
    if simulator is not None and not kernels_are_cached(Path(str(simulator.origin)).parent):
        _say()


@cache
def _say() -> None:
    stderr.print(MESSAGE, soft_wrap=True)
