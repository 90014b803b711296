"""The servers of a benchmark: started several at a time, all stopped at the end."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from turbospec_bench.vllm.cpu_binding import keep_off_bound_cores
from turbospec_bench.vllm.launch import Launch
from turbospec_bench.vllm.server import Server

AT_A_TIME = min(max(2, (os.cpu_count() or 1) // 3), 8)
"""A start takes most of a minute of one core, and on a GPU part of two others, which compile."""
POLL_SECONDS = 0.5


class Fleet:
    """Servers by name; leaving the context stops them all, also after an error."""

    def __init__(self, command: Sequence[str], logs: Path) -> None:
        self._command = command
        self._logs = logs
        self._servers: dict[str, Server] = {}
        self.free_cores: set[int] = set()
        """Cores that no worker of the servers is bound to; empty before the first server has started."""

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop([*self._servers])

    def __getitem__(self, name: str) -> Server:
        return self._servers[name]

    def start(self, launches: Sequence[Launch]) -> None:
        """Start those that are not running yet, and return when all of them answer.

        Raises:
            UserError: a server ended or takes too long.
        """
        waiting = deque(launch for launch in launches if launch.name not in self._servers)
        starting: list[Server] = []
        while waiting or starting:
            while waiting and len(starting) < AT_A_TIME:
                launch = waiting.popleft()
                self._servers[launch.name] = Server(self._command, launch, self._logs)
                starting.append(self._servers[launch.name])
            time.sleep(POLL_SECONDS)
            for server in [server for server in starting if server.is_ready()]:
                starting.remove(server)
                self.free_cores = keep_off_bound_cores(server.pid)

    def stop(self, names: Sequence[str]) -> None:
        """Stop servers. All are asked to stop before any is waited for, so that they end in parallel."""
        servers = [self._servers.pop(name) for name in names]
        for server in servers:
            server.ask_to_stop()
        for server in servers:
            server.wait_for_stop()

    def stop_all_but(self, kept: Sequence[str]) -> None:
        self.stop([name for name in self._servers if name not in kept])
