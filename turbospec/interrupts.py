"""Signals that arrive while LLVM calls back into Python, where they must not raise an exception."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType

CALLBACKS = "_raw_object_cache"
"""Begin of the names of functions that LLVM calls, in which an exception would be printed and lost."""
RETRY_SECONDS = 0.02


def signal_again(number: int) -> threading.Timer:
    """Send the main thread a signal after `RETRY_SECONDS`; returns the timer, which can be cancelled."""
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(RETRY_SECONDS, signal.pthread_kill, [main, number])
    timer.daemon = True
    timer.start()
    return timer


def is_in_compiler_callback(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, is of a function that LLVM calls."""
    return any(one.f_code.co_name.startswith(CALLBACKS) for one in callers(frame))


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back
