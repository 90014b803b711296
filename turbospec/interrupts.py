"""Where a signal must not raise an exception."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType

CALLBACKS = "_raw_object_cache"
"""Begin of the names of functions that LLVM calls, in which an exception would be printed and lost."""


def is_in_compiler_callback(frame: FrameType | None) -> bool:
    """Whether a frame, or one that called it, is such a function."""
    return any(one.f_code.co_name.startswith(CALLBACKS) for one in callers(frame))


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back
