"""Servers keep off the cores that their workers bind themselves to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from turbospec_bench.vllm.cpu_binding import bind, keep_off_bound_cores

OURS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
pytestmark = pytest.mark.skipif(len(OURS) < 2, reason="needs two cores")

SERVER = """
import os, subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
if sys.argv[1] != "none":
    os.sched_setaffinity(child.pid, {int(core) for core in sys.argv[1].split(",")})
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(child.pid, flush=True)
input()
"""
"""Two threads, and a child bound to the cores it is told."""


@pytest.fixture
def servers() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for server in started:
        server.communicate("\n", timeout=10)  # the child's input ends with it


def start(servers: list[subprocess.Popen[str]], worker_cores: str) -> tuple[int, int]:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, worker_cores],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    servers.append(server)
    assert server.stdout is not None
    return server.pid, int(server.stdout.readline())


def thread_cores(process: int) -> list[set[int]]:
    return [os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{process}/task")]


def test_a_server_keeps_off_its_workers_core(servers: list[subprocess.Popen[str]]) -> None:
    taken = min(OURS)
    server, worker = start(servers, str(taken))
    assert keep_off_bound_cores(server) == OURS - {taken}
    assert thread_cores(server) == [OURS - {taken}] * 2
    assert thread_cores(worker) == [{taken}]
    assert os.getpriority(os.PRIO_PROCESS, server) > os.getpriority(os.PRIO_PROCESS, worker), "it waits for its worker"
    assert os.sched_getaffinity(0) == OURS, "other processes stay as they are"


@pytest.mark.parametrize("worker_cores", ["none", ",".join(map(str, OURS))])
def test_where_no_core_is_left_or_taken_nothing_changes(
    servers: list[subprocess.Popen[str]], worker_cores: str
) -> None:
    server, _ = start(servers, worker_cores)
    assert keep_off_bound_cores(server) == OURS
    assert thread_cores(server) == [OURS] * 2
    assert os.getpriority(os.PRIO_PROCESS, server) == os.getpriority(os.PRIO_PROCESS, 0)


def test_a_process_that_has_ended_is_left_alone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    ended.wait()
    bind(ended.pid, OURS)
    assert keep_off_bound_cores(ended.pid) == OURS
