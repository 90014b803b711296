from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import Steps, closed, scenario, serve, state_of
from turbospec.policy import load_policy
from turbospec.policy.static import StaticPolicy
from turbospec_sim.run import Run, simulate
from turbospec_sim.scenario import Scenario

ORDERS = ("before_draft", "after_draft")


def seconds_of(made: Scenario, length: int = 3, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(steps, 4) when each step with a plan began, and the seconds of drafting, of the target's pass and of all."""
    steps = Steps()
    serve(state_of(made, seed), StaticPolicy(length), steps)
    return np.array([(v.now, o.draft_seconds, o.verify_seconds, o.step_seconds) for v, _, o in steps.seen])


def alike(order: str, tokens: int = 600, **changes: Any) -> Scenario:
    """Two requests whose steps all take the same time, but for the last few."""
    return closed(
        2,
        server__emit=order,
        drafter={"max_draft": 3},
        workload__requests=2,
        chat__prompt_tokens={"distribution": "constant", "tokens": 20},
        chat__output_tokens={"distribution": "constant", "tokens": tokens},
        chat__acceptance={"process": "iid", "rate": 0.0},
        **changes,
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_machine_changes_its_speed_as_the_scenario_says(order: str) -> None:
    change = [{"at_seconds": 4, "step": 2.0, "drafter": 3.0}, {"at_seconds": 9, "target": 0.5}]
    usual, changed = seconds_of(alike(order)), seconds_of(alike(order, latency__speed=change))
    draft, verify, step = usual[50, 1:]
    for first, last, host, target, drafter in (
        (0.5, 3.9, 1.0, 1.0, 1.0),
        (4.1, 8.9, 2.0, 2.0, 6.0),
        (9.1, 12.0, 1.0, 0.5, 1.0),
    ):
        rows = changed[(changed[:, 0] > first) & (changed[:, 0] < last)]
        assert len(rows) > 20
        expected = [
            draft * drafter,
            verify * target,
            draft * drafter + verify * target + (step - draft - verify) * host,
        ]
        assert rows[5:-5, 1:] == pytest.approx(np.tile(expected, (len(rows) - 10, 1)), rel=1e-9)


def test_the_warm_up_runs_at_the_usual_speed() -> None:
    made = scenario(latency__speed=[{"at_seconds": 0, "step": 10.0}], workload__warmup_requests=8)
    usual = scenario(workload__warmup_requests=8)
    slow, quick = (serve(state_of(each), StaticPolicy(0)) for each in (made, usual))
    assert slow.measured_from == quick.measured_from > 0.0
    assert slow.now > quick.now


@pytest.mark.parametrize("order", ORDERS)
def test_cold_steps_become_quicker_and_the_drafter_counts_its_own(order: str) -> None:
    cold = {"latency__cold_target": {"factor": 5, "steps": 10}, "latency__cold_drafter": {"factor": 9, "steps": 4}}
    usual, slow = seconds_of(alike(order)), seconds_of(alike(order, **cold))
    pace = slow[1:200, 2] / usual[1:200, 2]
    assert (np.diff(pace) < 0.0).all()
    assert 1.0 + 4.0 * np.exp(-3 / 10) < pace[0] < 5.0
    assert pace[-1] == pytest.approx(1.0, abs=1e-6)
    drafting = slow[slow[:, 1] > 0, 1] / usual[usual[:, 1] > 0, 1][: np.count_nonzero(slow[:, 1])]
    assert drafting[1:30] == pytest.approx(1.0 + 8.0 * np.exp(-np.arange(1, 30) / 4), rel=1e-9)
    # Steps without drafts do not warm the drafter.
    assert (seconds_of(alike(order, **cold), 0)[:, 1] == 0.0).all()


def test_stalls_have_the_given_rate_length_and_factor() -> None:
    stalls = {"probability": 0.02, "mean_steps": 4.0, "factor": 3.0}
    made = alike("after_draft", 9000, latency__stalls=stalls)
    ratio = seconds_of(made)[50:-50, 3] / seconds_of(alike("after_draft"))[50, 3]
    stalled = ratio > 1.5
    # The outcome has the times of the end of one step and of the beginning of the next one.
    assert set(np.round(ratio[stalled & np.roll(stalled, 1) & np.roll(stalled, -1)], 6)) == {3.0}
    assert stalled.mean() == pytest.approx(0.02 * 4 / (1 + 0.02 * 4), rel=0.25)
    began = np.flatnonzero(stalled & ~np.roll(stalled, 1))
    assert len(began) / np.count_nonzero(~stalled) == pytest.approx(0.02, rel=0.2)
    assert not np.array_equal(stalled, seconds_of(made, seed=1)[50:-50, 3] / ratio[0] > 1.5)


def test_stalls_do_not_depend_on_the_policy() -> None:
    made = alike("before_draft", latency__stalls={"probability": 0.05, "mean_steps": 2.0, "factor": 4.0})
    without, with_drafts = (seconds_of(made, length)[:500, 3] for length in (0, 3))
    stalled = without > 2 * np.median(without)
    assert stalled.sum() > 20
    assert np.array_equal(stalled, with_drafts > 2 * np.median(with_drafts))


def test_a_machine_at_its_usual_pace_gives_the_same_row() -> None:
    plain = scenario(latency__noise=0.1)
    neutral = scenario(
        latency__noise=0.1,
        latency__speed=[{"at_seconds": 1}],
        latency__cold_target={"factor": 1, "steps": 5},
        latency__stalls={"probability": 0.5, "factor": 1},
        drafter__kept_tokens=10**6,
        drafter__gap_acceptance=0.2,
    )
    rows = [simulate(Run("s", made, "adaptive", 20.0, 3)) for made in (plain, neutral)]
    for row in rows:
        del row["wall_seconds"]
    assert repr(rows[0]) == repr(rows[1])


def test_adaptive_follows_a_drafter_that_becomes_slow() -> None:
    """All requests draft at first; when drafting takes twenty times as long, hardly any does."""
    made = closed(
        4,
        workload__requests=120,
        chat__output_tokens={"distribution": "constant", "tokens": 100},
        latency__speed=[{"at_seconds": 30, "drafter": 20.0}],
    )
    steps = Steps()
    serve(state_of(made), load_policy("adaptive"), steps)
    drafted = np.array([(v.now, o.drafted.sum()) for v, _, o in steps.seen])
    assert drafted[(drafted[:, 0] > 15) & (drafted[:, 0] < 30), 1].mean() > 4.0
    assert drafted[drafted[:, 0] > 40, 1].mean() < 1.0
