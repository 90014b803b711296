from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec.policy import find_policy
from turbospec_sim.processes import LocalProcesses

SECONDS = 5.0


def test_one_process_is_this_one() -> None:
    assert list(LocalProcesses(1).map(os.getenv, ["PATH"])) == [(0, os.environ["PATH"])]


def test_results_come_as_they_are_finished_and_processes_are_used_again(tmp_path: Path) -> None:
    assert [place for place, _ in LocalProcesses(2).map(time.sleep, [1.0, 0.0])] == [1, 0]
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    # Either end waits for the other one, so that both processes have a part, however slowly one starts.
    parts = [f"(open({pipe!r}, {mode!r}).close(), __import__('os').getpid())[1]" for mode in "rw"]
    first, second = ({pid for _, pid in LocalProcesses(2).map(eval, parts)} for _ in "ab")
    assert len(first) == 2
    assert second == first
    assert os.getpid() not in first


def test_an_exception_is_raised_unchanged() -> None:
    with pytest.raises(UserError, match="no policy is called `adaptiv`") as told:
        list(LocalProcesses(2).map(find_policy, ["off", "adaptiv"]))
    assert "in find_policy" in "".join(told.value.__notes__)


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(Exception, match="pickle"):
        list(LocalProcesses(2).map(memoryview, [b"a", b"b"]))


def test_a_process_that_ends_is_an_error_with_its_cause() -> None:
    with pytest.raises(UserError, match=r"a simulating process ended \(exit status 3\)"):
        list(LocalProcesses(2).map(os._exit, [3, 3]))


def test_work_ends_at_once_where_no_more_results_are_taken() -> None:
    results = LocalProcesses(2).map(time.sleep, [0.0, 600.0])
    assert next(results)[0] == 0
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < SECONDS


SCRIPT = """
import os, time
from turbospec_sim.processes import LocalProcesses
print(os.getpid(), flush=True)
for place, _ in LocalProcesses(2).map(time.sleep, [0.0, 0.0, 600.0, 600.0]):
    print(place, flush=True)
"""
"""Without `if __name__ == "__main__"`, which a user's script need not have."""


def children(pid: int) -> set[int]:
    """Processes that a process has started."""
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return {int(line.split()[0]) for line in found.splitlines() if int(line.split()[1]) == pid}


def alive(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            found.add(pid)
    return found


@pytest.fixture
def script(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A script of a user, two of whose parts are finished, and two run for ten minutes."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_a_script(number: signal.Signals, script: subprocess.Popen[str]) -> None:
    started = children(script.pid)
    assert len(started) == 2
    script.send_signal(number)
    _, said = script.communicate(timeout=SECONDS)
    assert "resource_tracker" not in said
    until = time.monotonic() + SECONDS
    while alive(started) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(started)


FORKING = """
import os, sys
from turbospec_sim.processes import LocalProcesses
parts = ["__import__('os').getpid()"] * 9
before = {pid for _, pid in LocalProcesses(2).map(eval, parts)}
if os.fork() == 0:
    sys.exit()
os.wait()
print({pid for _, pid in LocalProcesses(2).map(eval, parts)} <= before)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_leaves_the_workers_alone() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")
