"""Ctrl-C at a moment that suits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """Collect interrupts in the list that is given, for its owner to act on between two steps.

    Compiled code that is interrupted fails with an error of another kind, which the controller's guard would take for
    the policy's. Outside the main thread, where no signals arrive, this does nothing.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield arrived
    finally:
        signal.signal(signal.SIGINT, before)
