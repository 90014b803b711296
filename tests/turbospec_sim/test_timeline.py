from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import Steps, closed, scenario, serve, state_of
from turbospec.files.results_file import plain
from turbospec.interface import Phase
from turbospec.policy.static import StaticPolicy
from turbospec_sim.records import ENGINE, TOTALS
from turbospec_sim.run import Run, simulate
from turbospec_sim.timeline import MAX_SNAPSHOTS, timeline

ORDERS = ("before_draft", "after_draft")


def test_a_short_run_has_a_point_for_every_step() -> None:
    state, steps = (
        state_of(closed(4, server__emit="before_draft", server__max_num_seqs=2, workload__requests=8)),
        Steps(),
    )
    serve(state, StaticPolicy(3), steps)
    assert len(steps.seen) <= MAX_SNAPSHOTS
    series = timeline(state.engine, state.totals)
    views, outcomes = [view for view, _, _ in steps.seen], [outcome for _, _, outcome in steps.seen]
    decoding = np.array([(view.phase != Phase.PREFILL).sum() for view in views], float)
    drafted = np.array([outcome.drafted.sum() for outcome in outcomes], float)
    accepted = np.array([outcome.accepted.sum() for outcome in outcomes], float)
    expected = {
        "seconds": [view.now for view in views],
        "decoding_requests": decoding,
        "draft_length": np.where(decoding > 0, drafted / np.maximum(decoding, 1), np.nan),
        "acceptance": np.where(drafted > 0, accepted / np.maximum(drafted, 1), np.nan),
        "running_requests": [view.size for view in views],
        "waiting_requests": [view.waiting_requests for view in views],
    }
    assert list(series) == list(expected)
    assert max(series["waiting_requests"]) == 2
    for name, values in expected.items():
        assert series[name] == pytest.approx(list(values), abs=1e-4, nan_ok=True), name


@pytest.mark.parametrize("order", ORDERS)
def test_a_long_run_has_few_points_that_leave_nothing_out(order: str) -> None:
    state, steps = state_of(closed(3, server__emit=order, workload__requests=400)), Steps()
    engine = serve(state, StaticPolicy(3), steps)
    assert len(steps.seen) > 4 * MAX_SNAPSHOTS
    series = timeline(state.engine, state.totals)
    points = len(series["seconds"])
    assert MAX_SNAPSHOTS // 2 <= points <= MAX_SNAPSHOTS + 1
    spans = np.diff([*series["seconds"], engine.now])
    assert (spans > 0).all()
    assert spans.max() < 4 * engine.now / points
    running = float(np.dot(spans, series["running_requests"]))
    assert running == pytest.approx(float(state.totals["running_seconds"][0]), rel=1e-3)
    assert np.average(series["running_requests"], weights=spans) <= 3.001
    assert 0.4 < np.nanmean(series["acceptance"]) < 0.7


def test_more_steps_take_no_more_memory() -> None:
    small, large = (state_of(scenario(workload__requests=number)) for number in (10, 1000))
    assert small.totals.nbytes == large.totals.nbytes < 50_000


def test_warm_up_is_left_out() -> None:
    state = state_of(scenario(workload__warmup_requests=5))
    engine = serve(state, StaticPolicy(3))
    assert engine.measured_from > 0.5
    series = timeline(state.engine, state.totals)
    assert series["seconds"][0] == 0.0
    assert series["seconds"][-1] < engine.now - engine.measured_from


def test_what_nobody_drafted_has_no_acceptance() -> None:
    row: dict[str, Any] = simulate(Run("s", scenario(workload__requests=5), "off", 20.0, 0))
    assert set(plain(row)["timeline"]["acceptance"]) == {None}
    assert set(plain(row)["timeline"]["draft_length"]) <= {0.0, None}


def test_without_steps_there_is_none() -> None:
    assert timeline(np.zeros(1, ENGINE), np.zeros(1 + MAX_SNAPSHOTS, TOTALS)) == {}
