"""Whatever is in a file, its parser returns a value or raises `UserError`, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.contents import MUTATORS, NUMBERS, OTHERS
from tests.turbospec_sim.scenarios import scenario
from turbospec.doctor.counts import read_bench, read_metrics
from turbospec.doctor.diagnosis import StepCost, compare, diagnose
from turbospec.errors import UserError
from turbospec.models.latency import LatencyModel
from turbospec.models.profile import Profile
from turbospec.observability.summary import Summary
from turbospec.observability.trace import read_trace
from turbospec.policy import read_policy
from turbospec_bench import targets
from turbospec_bench.results import Results
from turbospec_bench.texts import read_texts
from turbospec_sim.acceptance import acceptance_tables
from turbospec_sim.measurements import read_measurements
from turbospec_sim.scenario_file import read_scenario
from turbospec_sim.workload.offered import offered_requests

COST = StepCost(0.08, 0.02)


def _policy(path: Path) -> None:
    config = read_policy(path)
    config.build(None, 0)


def _profile(path: Path) -> None:
    LatencyModel.fit(Profile.load(path).samples)


def _results(path: Path) -> None:
    targets.judge(Results.load(path).rows)


def _trace(path: Path) -> None:
    summary = Summary()
    for step in read_trace(path, lambda line, why: None):
        summary.add(step)
    json.dumps(summary.document(), allow_nan=False)


def _metrics(path: Path) -> None:
    diagnose(read_metrics(path.read_text(encoding="utf-8", errors="replace"), "page"), COST)


def _bench(path: Path) -> None:
    run = read_bench(path)
    diagnose(run.counts, COST)
    compare(run, run)


def _arrivals(path: Path) -> None:
    arrivals = {"process": "trace", "file": str(path)}
    made = scenario(workload__arrivals=arrivals, workload__requests=None, rates=None)
    offered_requests(made.workload, None, 0)


def _accepted(path: Path) -> None:
    made = scenario(chat__acceptance={"process": "trace", "file": str(path)})
    acceptance_tables(made.workload.classes)


PARSERS: dict[str, Callable[[Path], Any]] = {
    "policy.yaml": _policy,
    "table.yaml": _policy,
    "scenario.yaml": read_scenario,
    "recorded.yaml": read_scenario,
    "profile.json": _profile,
    "results.json": _results,
    "trace.jsonl": _trace,
    "measured.csv": read_measurements,
    "measured.json": read_measurements,
    "workloads/code.jsonl": read_texts,
    "metrics.txt": _metrics,
    "bench.json": _bench,
    "arrivals.csv": _arrivals,
    "arrivals.jsonl": _arrivals,
    "accepted.jsonl": _accepted,
}
"""By the file of the stock that each reads."""

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["[/red]", "inf", "NaN", "\x00", "\x1b[31m"]),
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([*NUMBERS, *OTHERS]).map(str.encode),
)
QUICK = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(parser: Callable[[Path], Any], path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with suppress(UserError):
        parser(path)


@pytest.mark.parametrize("name", PARSERS)
@QUICK
@given(content=CONTENTS)
def test_anything_at_all(name: str, content: bytes, tmp_path: Path) -> None:
    check(PARSERS[name], tmp_path / Path(name).name, content)


@pytest.mark.parametrize("name", PARSERS)
@QUICK
@given(seed=st.integers(0, 2**32))
def test_nearly_valid_files(name: str, seed: int, stock: Path, tmp_path: Path) -> None:
    for beside in ("arrivals.csv", "accepted.jsonl", "profile.json"):
        (tmp_path / beside).write_bytes((stock / beside).read_bytes())
    content = MUTATORS[Path(name).suffix]((stock / name).read_bytes(), random.Random(seed))
    check(PARSERS[name], tmp_path / Path(name).name, content)


@pytest.mark.parametrize("name", PARSERS)
def test_the_stock_is_valid(name: str, stock: Path) -> None:
    PARSERS[name](stock / name)
