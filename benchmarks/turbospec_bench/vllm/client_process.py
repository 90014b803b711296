"""Starts and talks to the client process that runs `vllm bench serve`."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from turbospec.errors import UserError
from turbospec.files.reading import parse_json
from turbospec_bench.vllm.cpu_binding import bind
from turbospec_bench.vllm.server import last_line

COMMAND = (sys.executable, "-m", "turbospec_bench.vllm.client")
RUN_SECONDS = 900.0
"""Timeout of a run that is not scaled, and of the client's imports."""
POLL_SECONDS = 1.0


class BenchClient:
    """A client process; leaving the context ends it."""

    def __init__(self, log: Path, scale: int = 1) -> None:
        """Start it, and wait until it is ready.

        Args:
            log: file for what it prints.
            scale: factor by which runs have more requests, and may take longer.

        Raises:
            UserError: vLLM or what its client needs is not installed.
        """
        self._log = log
        self._run_seconds = RUN_SECONDS * scale
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            # In a session of its own, so that Ctrl-C does not end it; it ends when its stdin is closed.
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                bufsize=0,
                start_new_session=True,
            )
        try:
            self._answer(lambda: None)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> BenchClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def bind(self, cores: Collection[int]) -> None:
        """Bind it to these cores; no cores, no binding."""
        if cores:
            bind(self._process.pid, cores)

    def run(self, arguments: Sequence[str], check: Callable[[], None] = lambda: None) -> None:
        """Run `vllm bench serve` once.

        Args:
            check: called while it runs; what it raises ends the wait.

        Raises:
            UserError: it failed or timed out.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the end of the process is reported below
            self._process.stdin.write(json.dumps([*arguments]).encode() + b"\n")
        self._answer(check)

    def _answer(self, check: Callable[[], None]) -> None:
        assert self._process.stdout is not None
        waited = 0.0
        while not select.select([self._process.stdout], [], [], POLL_SECONDS)[0]:
            check()
            waited += POLL_SECONDS
            if waited >= self._run_seconds:
                raise UserError(
                    f"`vllm bench serve` did not end within {self._run_seconds:.0f} s; its log is {self._log}"
                )
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"`vllm bench serve` ended: {last_line(self._log)} (all of it in {self._log})")
        try:
            answer = parse_json(line.decode())
            failed = "error" in answer
        except (ValueError, TypeError) as error:
            raise UserError(f"`vllm bench serve` gave no answer ({error}); its log is {self._log}") from error
        if failed:
            check()
            raise UserError(f"`vllm bench serve` failed: {answer['error']} (its log is {self._log})")

    def _end(self) -> None:
        with suppress(ProcessLookupError):  # it has ended, and its children with it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
