from __future__ import annotations

from pathlib import Path

import pytest

from tests.turbospec_bench.tiny import write_models, write_workloads
from turbospec_bench import other_processes


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `models` and `workloads`."""
    folder = tmp_path_factory.mktemp("tiny")
    write_models(folder / "models")
    write_workloads(folder / "workloads")
    return folder


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does, nothing of it is noticed."""
    monkeypatch.setattr(other_processes, "START_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(other_processes.CpuWatch, "other_cores", lambda self: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
