from __future__ import annotations

from pathlib import Path

import pytest

from tests.turbospec_sim.scenarios import scenario
from turbospec.errors import UserError
from turbospec_sim.sweep import Sweep, run_all

ray = pytest.importorskip("ray", reason="Ray is an extra of its own: pip install '.[ray]'")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_ray_changes_no_row() -> None:
    runs = Sweep([("a", scenario(workload__requests=10))], ("off", "static-1", "oracle"), seeds=2).runs()
    rows = [list(run_all(runs, backend=backend)) for backend in ("local", "ray")]
    for one in (*rows[0], *rows[1]):
        del one["wall_seconds"]
    assert repr(rows[0]) == repr(rows[1])


def test_a_mistake_that_a_worker_finds_is_told_as_it_is(tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    runs = Sweep([("a", scenario(workload__requests=10))], (str(policy), "off")).runs()
    with pytest.raises(UserError, match=r"mine\.yaml") as told:
        list(run_all(runs, backend="ray"))
    assert len(str(told.value)) < 300
