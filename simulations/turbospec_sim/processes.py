"""Processes of this machine that run the parts of a sweep.

A process is started once and used again by later calls. None of them outlives this process: each ends when the pipe to
it is closed, which the system does for a process that is killed, too (see `worker`). An interruption kills those at
work at once. Unlike with `multiprocessing`, a user's script needs no `if __name__ == "__main__"`, and there is nothing
shared that could be left behind.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, TypeVar, cast

from turbospec.errors import UserError
from turbospec_sim import worker

Part = TypeVar("Part")
Result = TypeVar("Result")

PROCESSES_PER_CORE = 4
"""More are not started: they would only take memory."""


class LocalProcesses:
    """Processes of this machine.

    Args:
        count: parts that run in parallel; with 1 they run in this process.
    """

    def __init__(self, count: int) -> None:
        self.count = min(count, PROCESSES_PER_CORE * (os.cpu_count() or 1))

    def map(self, function: Callable[[Part], Result], parts: Sequence[Part]) -> Generator[tuple[int, Result]]:
        """As in `backends.Workers`."""
        size = min(self.count, len(parts))
        if size <= 1:
            for place, part in enumerate(parts):
                yield place, function(part)
            return
        waiting: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        for item in enumerate(parts):
            waiting.put(item)
        answers: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        used: list[_Process] = []
        try:
            while len(used) < size:
                used.append(_idle.pop() if _idle else _Process())
                used[-1].serve(function, waiting, answers)
            for _ in parts:
                place, result, error = answers.get()
                if error is not None:
                    raise error
                yield place, cast(Result, result)
        except BaseException:  # also where the caller takes no more results
            for process in used:
                process.kill()
            raise
        _idle.extend(used)


class _Process:
    """One process, and the thread that gives it work."""

    def __init__(self) -> None:
        # In a session of its own, so that Ctrl-C on the terminal reaches this process only.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._thread: Thread | None = None
        self._begun = False

    def serve(
        self,
        function: Callable[[Any], Any],
        waiting: SimpleQueue[tuple[int, Any]],
        answers: SimpleQueue[tuple[int, Any, BaseException | None]],
    ) -> None:
        """Take parts until none waits, and put each one's place with its result or exception."""
        self._thread = Thread(target=self._serve, args=(function, waiting, answers), daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.wait()
        if self._thread is not None:
            self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:  # a call that it did not read
                continue

    def _serve(
        self,
        function: Callable[[Any], Any],
        waiting: SimpleQueue[tuple[int, Any]],
        answers: SimpleQueue[tuple[int, Any, BaseException | None]],
    ) -> None:
        while True:
            try:
                place, part = waiting.get_nowait()
            except Empty:
                return
            try:
                result, error = self._call(function, part)
            except (OSError, EOFError):
                result, error = None, self._ended()
            except Exception as failed:  # what cannot be pickled
                result, error = None, failed
            answers.put((place, result, error))
            if error is not None:
                return

    def _call(self, function: Callable[[Any], Any], part: Any) -> tuple[Any, BaseException | None]:
        calls, answers = cast("BinaryIO", self._process.stdin), cast("BinaryIO", self._process.stdout)
        if not self._begun:
            worker.send(calls, pickle.dumps(sys.path))
            self._begun = True
        worker.send(calls, pickle.dumps((function, part)))
        return pickle.loads(worker.receive(answers))

    def _ended(self) -> UserError:
        status = self._process.wait()
        why = f"signal {-status}" if status < 0 else f"exit status {status}"
        return UserError(f"a simulating process ended ({why}), perhaps for lack of memory; use fewer --jobs")


_idle: list[_Process] = []
"""Processes that wait for work."""


if hasattr(os, "register_at_fork"):
    # They belong to the process that started them.
    os.register_at_fork(after_in_child=_idle.clear)


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().kill()
