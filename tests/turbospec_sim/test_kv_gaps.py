from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.turbospec_sim.scenarios import Pause, Steps, closed, scenario, serve, state_of
from turbospec_sim.scenario import Scenario

ORDERS = ("before_draft", "after_draft")


def lone(order: str, **changes: Any) -> Scenario:
    return closed(
        1,
        server__emit=order,
        workload__requests=1,
        chat__prompt_tokens={"distribution": "constant", "tokens": 30},
        chat__output_tokens={"distribution": "constant", "tokens": 3000},
        **({"chat__acceptance": {"process": "iid", "rate": 1.0}} | changes),
    )


def run(made: Scenario, begin: int = 20, end: int = 120) -> tuple[Steps, float]:
    state, steps = state_of(made), Steps()
    serve(state, Pause(begin, end), steps)
    return steps, float(state.offered["latency"][0])


def after_pause(steps: Steps, end: int = 120) -> list[tuple[int, int, int]]:
    """Draft limit, drafted and accepted tokens of each step from `end` on."""
    return [(int(v.draft_limits[0]), int(o.drafted[0]), int(o.accepted[0])) for v, _, o in steps.seen if v.step >= end]


@pytest.mark.parametrize("order", ORDERS)
def test_lag_within_what_is_kept_is_caught_up(order: str) -> None:
    endless, kept = run(lone(order)), run(lone(order, drafter__kept_tokens=200, drafter__gap_acceptance=0.0))
    assert endless[1] == kept[1]
    for steps, _ in (endless, kept):
        assert all(accepted == drafted for _, drafted, accepted in after_pause(steps))
        assert sum(o.catch_up_tokens for v, _, o in steps.seen if v.step >= 100) == pytest.approx(100, abs=3)


@pytest.mark.parametrize("order", ORDERS)
def test_without_gaps_a_request_that_lags_too_far_drafts_no_more(order: str) -> None:
    steps, _ = run(lone(order, drafter__kept_tokens=50))
    assert {(limit, drafted) for limit, drafted, _ in after_pause(steps)} == {(0, 0)}
    assert max(limit for _, _, limit in after_pause(steps)) == 0


@pytest.mark.parametrize("order", ORDERS)
def test_acceptance_is_lower_after_a_gap_and_rises_again(order: str) -> None:
    gap = {"drafter__kept_tokens": 50, "drafter__gap_acceptance": 0.2, "drafter__gap_tokens": 400}
    steps, _ = run(lone(order, **gap))
    assert sum(o.catch_up_tokens for v, _, o in steps.seen if v.step >= 100) == 0  # what is lost costs no time
    assert {int(v.drafter_lag_tokens[0]) for v, _, _ in steps.seen if v.step >= 119} == {0}
    places = np.array([int(v.emitted_tokens[0]) for v, _, _ in steps.seen if v.step >= 120])
    passed = np.array([accepted for _, _, accepted in after_pause(steps)])
    drafted = np.array([drafted for _, drafted, _ in after_pause(steps)])
    began = places[0]
    early, late = places < began + 40, places > began + 420
    assert passed[early].sum() / drafted[early].sum() < 0.35
    assert (passed[late] == drafted[late]).all()


def test_a_preempted_request_has_no_gap() -> None:
    made = scenario(
        server__kv_cache_tokens=1200,
        server__max_num_seqs=12,
        rates=[1000.0],
        drafter__kept_tokens=10,
        chat__acceptance={"process": "iid", "rate": 1.0},
    )
    state = state_of(made)
    serve(state, Pause(0, 30))
    assert state.engine["preemptions"][0] > 0
    assert state.engine["finished"][0] == len(state.offered)


@pytest.mark.parametrize(
    "drafter",
    [
        {"max_draft": 3, "gap_acceptance": 0.5},
        {"max_draft": 3, "kept_tokens": 100, "first_pass_every_step": True},
        {"max_draft": 3, "kept_tokens": 100, "gap_acceptance": 1.5},
    ],
)
def test_settings_without_a_meaning_are_refused(drafter: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        scenario(drafter=drafter)
