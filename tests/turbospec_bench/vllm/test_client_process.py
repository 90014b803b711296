from __future__ import annotations

import sys
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec_bench.vllm import client_process
from turbospec_bench.vllm.client_process import BenchClient

SLOW = "import sys, time; print('{}', flush=True); sys.stdin.readline(); time.sleep(1.5); print('{}', flush=True)"


def test_a_run_with_more_requests_may_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_process, "COMMAND", (sys.executable, "-c", SLOW))
    with BenchClient(tmp_path / "log", scale=100) as scaled, BenchClient(tmp_path / "log") as client:
        monkeypatch.setattr(client_process, "POLL_SECONDS", 0.1)
        client._run_seconds /= 3000
        scaled._run_seconds /= 3000

        with pytest.raises(UserError, match=r"did not end within 0 s"):
            client.run([])
        scaled.run([])
