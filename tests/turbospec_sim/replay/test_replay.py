from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec.synthetic_engine import SyntheticEngine, Times, drafter
from tests.turbospec_sim.replay.traces import written
from tests.turbospec_sim.scenarios import closed, scenario
from turbospec.controller import Controller, GuardConfig
from turbospec.models.profile import Profile
from turbospec.observability.trace import DecisionTrace, read_trace
from turbospec.policy import find_policy, read_policy
from turbospec.policy.static import StaticPolicy
from turbospec_sim.replay.replay import Replay
from turbospec_sim.run import Run, simulate

LONG = {"distribution": "constant", "tokens": 120}
BY_POSITION = {"process": "by_position", "rates": [0.85, 0.7, 0.5, 0.35]}
COMPARED = ("output_throughput", "tokens_per_step_second", "mean_tpot_ms")


def policy(name: str) -> Any:
    return read_policy(find_policy(name))


# The simulator's own `after_draft` traces show requests a step later than vLLM's do.
@pytest.mark.parametrize(("emit", "error"), [("before_draft", 0.005), ("after_draft", 0.04)])
@pytest.mark.parametrize("name", ["static-3", "adaptive"])
def test_the_recorded_plans_reproduce_the_recording(emit: str, error: float, name: str, tmp_path: Path) -> None:
    made = scenario(rates=[10.0], server__emit=emit, latency__noise=0.05, chat__output_tokens=LONG)
    replay = Replay(written(tmp_path / "trace.jsonl", made, name))
    again = replay.as_recorded()
    assert again["judged_share"] == pytest.approx(1.0, abs=0.001)
    assert again["mean_draft_length"] == pytest.approx(replay.recorded["mean_draft_length"], rel=0.02)
    assert again["mean_accepted_length"] == pytest.approx(replay.recorded["mean_accepted_length"], rel=0.01)
    for figure in COMPARED:
        assert again[figure] == pytest.approx(replay.recorded[figure], rel=error)


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_a_fixed_length_that_was_recorded_needs_no_bounds(emit: str, tmp_path: Path) -> None:
    made = closed(4, server__emit=emit, chat__output_tokens=LONG)
    replay = Replay(written(tmp_path / "trace.jsonl", made, "static-3"), concurrency=4)
    pessimistic, optimistic = replay.rows("static-3", policy("static-3"))
    assert pessimistic["judged_share"] == optimistic["judged_share"] == 1.0
    assert pessimistic["extrapolated_time_share"] == 0.0
    for figure in COMPARED:
        assert pessimistic[figure] == optimistic[figure]
        assert pessimistic[figure] == pytest.approx(replay.recorded[figure], rel=0.02)


@pytest.mark.parametrize("kind", ["sequential", "parallel"])
def test_a_drafter_pass_in_every_step_is_counted_once(kind: str, tmp_path: Path) -> None:
    made = closed(
        4, server__emit="before_draft", drafter__first_pass_every_step=True, drafter__kind=kind,
        drafter__batch=True, chat__output_tokens=LONG,
    )  # fmt: skip
    replay = Replay(written(tmp_path / "trace.jsonl", made, "static-3"), concurrency=4)
    assert replay.drafter.first_pass_every_step
    again = replay.as_recorded()
    for figure in COMPARED:
        assert again[figure] == pytest.approx(replay.recorded[figure], rel=0.02)
    off, _ = replay.rows("off", policy("off"))
    truth = simulate(Run("s", made, "off", None, 0))
    assert off["output_throughput"] == pytest.approx(truth["output_throughput"], rel=0.05)


@pytest.mark.parametrize("acceptance", [BY_POSITION, {"process": "iid", "rate": 0.7}])
def test_the_truth_lies_between_the_bounds(acceptance: dict[str, Any], tmp_path: Path) -> None:
    made = closed(4, server__emit="before_draft", chat__output_tokens=LONG, chat__acceptance=acceptance)
    replay = Replay(written(tmp_path / "trace.jsonl", made, "static-2"), concurrency=4)
    for name in ("off", "static-1", "static-5", "adaptive"):
        truth = simulate(Run("s", made, name, None, 0))
        pessimistic, optimistic = replay.rows(name, policy(name))
        assert pessimistic["bound"] == "pessimistic"
        assert pessimistic["output_throughput"] < truth["output_throughput"] * 1.03, name
        assert optimistic["output_throughput"] > truth["output_throughput"] * 0.97, name
        if name == "off":
            assert pessimistic["judged_share"] == 1.0
        if name == "static-5":
            assert pessimistic["judged_share"] < 0.9
            assert optimistic["output_throughput"] > 1.2 * pessimistic["output_throughput"]


def test_tokens_alone_tell_more_where_acceptance_does_not_depend_on_the_place(tmp_path: Path) -> None:
    made = closed(
        4, server__emit="before_draft", chat__output_tokens=LONG, chat__acceptance={"process": "iid", "rate": 0.7}
    )
    steps = written(tmp_path / "trace.jsonl", made, "static-5")
    truth = simulate(Run("s", made, "static-2", None, 0))["output_throughput"]
    gaps, judged = [], []
    for same in (False, True):
        replay = Replay(steps, concurrency=4, same_at_any_position=same)
        low, high = replay.rows("static-2", policy("static-2"))
        assert low["output_throughput"] < 1.03 * truth
        assert high["output_throughput"] > 0.97 * truth
        gaps.append(high["output_throughput"] - low["output_throughput"])
        judged.append(low["judged_share"])
    assert gaps[1] < 0.7 * gaps[0]
    assert judged[1] > judged[0] + 0.05


def test_nothing_is_known_of_what_was_never_drafted(tmp_path: Path) -> None:
    replay = Replay(written(tmp_path / "trace.jsonl", closed(4), "off"), concurrency=4)
    pessimistic, optimistic = replay.rows("static-3", policy("static-3"))
    assert pessimistic["judged_share"] == 0.0
    assert pessimistic["extrapolated_time_share"] > 0.8
    assert pessimistic["mean_accepted_length"] == 1.0
    assert optimistic["mean_accepted_length"] > 3.0


def test_the_synthetic_engines_trace_is_reproduced(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        guard = GuardConfig(max_decision_seconds=3600.0)
        engine = SyntheticEngine(8, Times(verify_token=2e-4))
        engine.serve(Controller(StaticPolicy(3), guard=guard, listeners=[trace]), drafter(0.9), 40)
    replay = Replay(list(read_trace(path)), concurrency=8)
    pessimistic, optimistic = replay.rows("static-3", policy("static-3"))
    for row in (replay.as_recorded(), pessimistic, optimistic):
        assert row["judged_share"] == 1.0
        for figure in COMPARED:
            assert row[figure] == pytest.approx(replay.recorded[figure], rel=0.03)
    off, _ = replay.rows("off", policy("off"))
    assert off["output_throughput"] != pytest.approx(pessimistic["output_throughput"], rel=0.05)


def test_a_profile_goes_before_the_traces_own_times(tmp_path: Path) -> None:
    steps = written(tmp_path / "trace.jsonl", closed(4), "static-3")
    own = Replay(steps, concurrency=4)
    names = ("draft_seconds", "verify_seconds", "step_seconds")
    slow = [
        replace(sample, **{name: 2.0 * getattr(sample, name) for name in names}) for sample in own.recording.samples
    ]
    given = Replay(steps, concurrency=4, profile=Profile(slow))
    assert given.fit.correction == 1.0
    assert given.fit.total_error == pytest.approx(1.0, abs=0.05)
    assert given.as_recorded()["output_throughput"] == pytest.approx(
        own.as_recorded()["output_throughput"] / 2, rel=0.05
    )


def test_what_passes_between_steps_counts(tmp_path: Path) -> None:
    steps = written(tmp_path / "trace.jsonl", closed(4, server__emit="before_draft"), "static-3")
    later = [replace(step, now=step.now + 5e-3 * place) for place, step in enumerate(steps)]
    replay = Replay(later, concurrency=4)
    again = replay.as_recorded()
    assert replay.recorded["output_throughput"] < 0.9 * Replay(steps).recorded["output_throughput"]
    for figure in COMPARED:
        assert again[figure] == pytest.approx(replay.recorded[figure], rel=0.01)


def test_pauses_count_in_no_share_of_step_times(tmp_path: Path) -> None:
    steps = written(tmp_path / "trace.jsonl", closed(4), "off")
    later = [replace(step, now=step.now + 5e-3 * place) for place, step in enumerate(steps)]
    extrapolated, _ = Replay(later, concurrency=4).rows("static-3", policy("static-3"))
    assert 0.8 < extrapolated["extrapolated_time_share"] <= 1.0


def test_a_parallel_drafters_rows_are_not_charged_by_the_token(tmp_path: Path) -> None:
    drafter_of_batches = {"max_draft": 5, "kind": "parallel", "batch": False}
    made = closed(4, server__emit="before_draft", drafter=drafter_of_batches, latency__draft_row_seconds=2e-3)
    replay = Replay(written(tmp_path / "trace.jsonl", made, "static-3"), concurrency=4)
    again = replay.as_recorded()
    for figure in COMPARED:
        assert again[figure] == pytest.approx(replay.recorded[figure], rel=0.02)
