"""Signals that ask a command to end: SIGTERM and SIGHUP act as Ctrl-C does, so that finished results are kept."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class SignalsInterrupt:
    """While in use, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread. Ignored signals stay ignored."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._received: int = signal.SIGINT

    @property
    def exit_status(self) -> int:
        """Of a command that was interrupted: 128 + the signal's number."""
        return 128 + self._received

    def __enter__(self) -> SignalsInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        raise KeyboardInterrupt
