"""One `vllm serve` process, from start to end."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from turbospec.errors import UserError
from turbospec.hosts.vllm.shared.support import ENVIRONMENT
from turbospec_bench.vllm.launch import Launch
from turbospec_bench.vllm.watched_process import start

HOST = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Below those that Linux gives to outgoing connections, one of which could take a port before vLLM binds it."""
START_SECONDS = 600.0
"""Timeout of a server's start; several start at a time, on a busy machine."""
HEALTH_SECONDS = 5.0
STOP_SECONDS = 20.0
TIDY_SECONDS = 3.0
"""For child processes to clean up after a server that has ended."""
POLL_SECONDS = 0.05
MAX_METRICS_BYTES = 64 * 2**20
DEFAULTS = {"HF_HUB_OFFLINE": "1"}
"""The models are on disk; the user's environment overrides this."""


class Server:
    """A server and its log. Its creator stops it."""

    def __init__(self, command: Sequence[str], launch: Launch, logs: Path) -> None:
        self.name = launch.name
        self.log = logs / f"{launch.name}.log"
        port = _free_port()
        self.url = f"http://{HOST}:{port}"
        self._late_at = time.monotonic() + START_SECONDS
        logs.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self._process = start(
                [*command, "serve", *launch.arguments, "--host", HOST, "--port", str(port)],
                output,
                _environment(launch.environment),
            )

    @property
    def pid(self) -> int:
        """Process id of the first process, and of its group."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Whether it answers health checks.

        Raises:
            UserError: it ended, or takes too long to start.
        """
        self.check()
        try:
            with urlopen(f"{self.url}/health", timeout=HEALTH_SECONDS):
                return True
        except (OSError, HTTPException):
            if time.monotonic() < self._late_at:
                return False
        raise UserError(f"vLLM ({self.name}) does not answer after {START_SECONDS:.0f} s: {self._said()}")

    def metrics(self) -> str:
        """The text of its `/metrics`.

        Raises:
            UserError: it does not answer.
        """
        try:
            with urlopen(f"{self.url}/metrics", timeout=HEALTH_SECONDS) as answer:
                return answer.read(MAX_METRICS_BYTES).decode(errors="replace")
        except (OSError, HTTPException) as error:
            raise UserError(f"vLLM ({self.name}) does not show its metrics: {error}") from error

    def check(self) -> None:
        """Raise a UserError if the server has ended."""
        if (status := self._process.poll()) is not None:
            raise UserError(f"vLLM ({self.name}) ended with status {status}: {self._said()}")

    def _said(self) -> str:
        return f"{last_line(self.log)} (all of it in {self.log})"

    def ask_to_stop(self) -> None:
        # Reaches only the command: it ends the others, which then remove their shared memory.
        self._process.terminate()

    def wait_for_stop(self) -> None:
        """Wait for its end, and kill the processes that are left."""
        try:
            with suppress(subprocess.TimeoutExpired, ProcessLookupError):
                self._process.wait(STOP_SECONDS)
                late_at = time.monotonic() + TIDY_SECONDS
                while time.monotonic() < late_at:
                    os.killpg(self._process.pid, 0)
                    time.sleep(POLL_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "its log is empty"


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Our environment, but with TurboSpec's variables from the launch alone."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT)}
    return DEFAULTS | ours | dict(own)


def _free_port() -> int:
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return port
    raise UserError(f"{HOST} has no free port from {PORTS.start} to {PORTS.stop - 1}: end what uses them")
