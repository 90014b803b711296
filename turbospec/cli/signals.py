"""Signals that ask a command to end: SIGTERM and SIGHUP act as Ctrl-C does, so that finished results are kept.

While kernels are compiled, LLVM calls back into Python. An exception that a signal raises there is printed and lost,
and compilation fails later. Such a signal is sent again a little later.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from turbospec.interrupts import is_in_compiler_callback, signal_again


class SignalsInterrupt:
    """While in use, these signals raise KeyboardInterrupt in the main thread. Those that are ignored stay ignored."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._received: int = signal.SIGINT
        self._again: list[threading.Timer] = []

    @property
    def exit_status(self) -> int:
        """Of a command that was interrupted: 128 + the signal's number."""
        return 128 + self._received

    def __enter__(self) -> SignalsInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._again:
            timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        if not is_in_compiler_callback(frame):
            raise KeyboardInterrupt
        self._again.append(signal_again(number))
