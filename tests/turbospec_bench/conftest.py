from __future__ import annotations

from pathlib import Path

import pytest

from tests.turbospec_bench.tiny import write_models, write_workloads


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `models` and `workloads`."""
    folder = tmp_path_factory.mktemp("tiny")
    write_models(folder / "models")
    write_workloads(folder / "workloads")
    return folder
