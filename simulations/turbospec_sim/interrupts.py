"""Ctrl-C, and other signals that ask a program to end, between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from turbospec.interrupts import callers, is_in_compiler_callback, signal_again

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
COMPILER = "numba."
"""Begin of the names of the compiler's modules."""


@contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """Collect signals in the list that is yielded; the caller checks it between two steps, and ends.

    At the end each signal's own handler is called; Python's for SIGINT raises KeyboardInterrupt. Interrupted compiled
    code raises another exception, which the controller's guard would count as a fault of the policy. While code is
    being compiled, which takes up to half a minute, a signal is handled at once. Signals without a handler are not
    touched. Outside the main thread, which alone receives signals, this does nothing.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    retries: list[threading.Timer] = []

    def receive(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        if is_in_compiler_callback(frame):
            retries.append(signal_again(number))
        elif _is_compiling(frame):
            before[number](number, frame)

    for number in before:
        signal.signal(number, receive)
    try:
        yield arrived
    finally:
        for retry in retries:
            retry.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in arrived:
        before[number](number, None)


def _is_compiling(frame: FrameType | None) -> bool:
    """Whether the compiler is at work in a frame or in one that called it; compiled code has no frames."""
    return any(str(one.f_globals.get("__name__")).startswith(COMPILER) for one in callers(frame))
