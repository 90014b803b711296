"""Signals that ask a command to end: SIGTERM and SIGHUP act as Ctrl-C does, so that finished results are kept.

While kernels are compiled, LLVM calls back into Python. An exception that a signal raises there is printed and lost,
and compilation fails later. In the callbacks of weak references and in finalisers, of which the compiler has many, it
is lost too. Such a signal is sent again a little later.
"""

from __future__ import annotations

import signal
import sys
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
        self._hook = sys.unraisablehook

    @property
    def exit_status(self) -> int:
        """Of a command that was interrupted: 128 + the signal's number."""
        return 128 + self._received

    def __enter__(self) -> SignalsInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._interrupt)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._lost
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._again:
            timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if sys.unraisablehook == self._lost:
            sys.unraisablehook = self._hook

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        if not is_in_compiler_callback(frame):
            raise KeyboardInterrupt
        self._again.append(signal_again(number))

    def _lost(self, fault: sys.UnraisableHookArgs) -> None:
        if issubclass(fault.exc_type, KeyboardInterrupt):
            self._again.append(signal_again(self._received))
        else:
            self._hook(fault)
