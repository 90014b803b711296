from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.turbospec_bench.vllm import fake_vllm
from turbospec import UserError
from turbospec_bench.vllm import server
from turbospec_bench.vllm.fleet import Fleet
from turbospec_bench.vllm.launch import Launch

COMMAND = [sys.executable, fake_vllm.__file__]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_servers_start_once_answer_and_end(tmp_path: Path) -> None:
    with Fleet(COMMAND, tmp_path / "logs") as fleet:
        fleet.start([Launch("off", ()), Launch("static-1", ()), Launch("adaptive", ())])
        off = fleet["off"]
        fleet.start([Launch("off", ())])
        assert fleet["off"] is off
        fleet.stop_all_but(["off"])
        with pytest.raises(KeyError):
            fleet["adaptive"]
        off.check()

    with pytest.raises(UserError, match=r"vLLM \(off\) ended"):
        off.check()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["adaptive.log", "off.log", "static-1.log"]


def test_a_child_that_stays_is_ended_too_whatever_happened(tmp_path: Path) -> None:
    noted = tmp_path / "child"
    launch = Launch("off", (), {"FAKE_VLLM": "leaves-a-child", "FAKE_VLLM_CHILD": str(noted)})

    def interrupted() -> None:
        with Fleet(COMMAND, tmp_path) as fleet:
            fleet.start([launch])
            assert is_running(int(noted.read_text()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    deadline = time.monotonic() + 5
    while is_running(int(noted.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(noted.read_text()))


def test_servers_end_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    noted = tmp_path / "child"
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from turbospec_bench.vllm.fleet import Fleet\n"
        "from turbospec_bench.vllm.launch import Launch\n"
        f"launch = Launch('off', (), {{'FAKE_VLLM': 'leaves-a-child', 'FAKE_VLLM_CHILD': {str(noted)!r}}})\n"
        f"fleet = Fleet({COMMAND!r}, Path({str(tmp_path)!r}))\n"
        "fleet.start([launch])\n"
        "print(fleet['off'].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    processes = [int(killed.stdout), int(noted.read_text())]
    deadline = time.monotonic() + 20
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, processes))


def test_a_server_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    with (
        Fleet(COMMAND, tmp_path) as fleet,
        pytest.raises(
            UserError, match=r"vLLM \(good-adaptive\) ended with status 1: ValueError: no such model \(all of"
        ),
    ):
        fleet.start([Launch("good-adaptive", (), {"FAKE_VLLM": "dies"})])


def test_a_port_in_use_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind((server.HOST, 0))
        taken = other.getsockname()[1]
        monkeypatch.setattr(server, "PORTS", range(taken, taken + 1))
        with pytest.raises(UserError, match=f"no free port from {taken} to {taken}"):
            server.Server(["vllm"], Launch("full", ()), tmp_path)
        monkeypatch.setattr(server, "PORTS", range(taken, taken + 20))
        one = server.Server([sys.executable, "-c", ""], Launch("free", ()), tmp_path)
        one.wait_for_stop()
        assert one.url != f"http://{server.HOST}:{taken}"


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START_SECONDS", 0.1)
    with (
        Fleet([sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(60)"], tmp_path) as fleet,
        pytest.raises(UserError, match=r"does not answer after 0 s"),
    ):
        fleet.start([Launch("off", ())])


def test_turbospec_is_in_no_server_but_those_that_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOSPEC_POLICY", "mine.yaml")
    monkeypatch.setenv("TURBOSPEC_LOOKUP", "ngram")
    show = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    for launch in (Launch("off", ()), Launch("adaptive", (), {"TURBOSPEC_POLICY": "adaptive"})):
        with Fleet(show, tmp_path) as fleet, pytest.raises(UserError, match="ended with status 0"):
            fleet.start([launch])

    off, adaptive = (json.loads((tmp_path / f"{name}.log").read_text()) for name in ("off", "adaptive"))
    assert "TURBOSPEC_POLICY" not in off
    assert adaptive["TURBOSPEC_POLICY"] == "adaptive"
    assert "TURBOSPEC_LOOKUP" not in off | adaptive
    assert off["HF_HUB_OFFLINE"] == os.environ.get("HF_HUB_OFFLINE", "1")
