"""Ctrl-C between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """Collect SIGINT in the list that is yielded; the caller checks it between two steps.

    Interrupted compiled code raises another exception, which the controller's guard would count as a fault of the
    policy. Outside the main thread, which alone receives signals, this does nothing.
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
