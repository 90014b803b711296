"""Runs a command, and ends its process group when whoever started this has ended, however that happened.

Started by `watched_process.py`, as the first process of a session. Its stdin is a pipe that nobody writes to: it is at
its end when the other side's process has ended. This is a script of its own that imports nothing but the standard
library, because one runs beside every vLLM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 5.0
"""For the command to end after it was asked to."""


def main() -> None:
    """Run the command in the arguments; the exit status is its own, or 128 + the signal that ended it."""
    started: list[subprocess.Popen[bytes]] = []

    def ask_to_stop(*_: object) -> None:
        for child in started:
            child.terminate()
        if not started:
            sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, ask_to_stop)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    started.append(child)

    parent_ended = threading.Event()

    def end_with_parent() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        parent_ended.set()
        child.terminate()
        time.sleep(GRACE_SECONDS)
        os.killpg(0, signal.SIGKILL)

    watcher = threading.Thread(target=end_with_parent, daemon=True)
    watcher.start()
    status = child.wait()
    if parent_ended.is_set():
        watcher.join()
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
