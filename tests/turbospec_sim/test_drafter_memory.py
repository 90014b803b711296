"""The drafter's KV blocks in the target's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import Pause, Steps, closed, scenario, serve, state_of
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView
from turbospec_sim.drafter_memory import IDLE_STEPS
from turbospec_sim.scenario import Scenario
from turbospec_sim.state import EngineState

ORDERS = ("before_draft", "after_draft")
LONG = 4 * IDLE_STEPS


def full(order: str, **changes: Any) -> Scenario:
    """Requests of 320 tokens in a cache of 40 blocks that holds two of them, or one with its drafter's."""
    settings = {
        "server__emit": order,
        "server__kv_cache_tokens": 1600,
        "drafter__kv_share": 1.0,
        "workload__requests": 40,
        "chat__prompt_tokens": {"distribution": "constant", "tokens": 100},
        "chat__output_tokens": {"distribution": "constant", "tokens": 220},
    }
    return closed(16, **(settings | changes))


def run(made: Scenario, policy: Pause) -> tuple[Steps, EngineState, list[int]]:
    """The steps, the state at the end, and the number of requests with drafter KV blocks after each step."""
    state, steps, holders = state_of(made), Steps(), list[int]()

    class Holders:
        def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
            holders.append(int((state.requests["draft_blocks"] > 0).sum()))

    serve(state, policy, steps, Holders())
    return steps, state, holders


def mean_running(steps: Steps, first: int) -> float:
    return float(np.mean([view.size for view, _, _ in steps.seen if view.step >= first]))


@pytest.mark.parametrize("order", ORDERS)
def test_a_drafter_that_is_off_for_long_gives_its_memory_back(order: str) -> None:
    reserved, _, always = run(full(order, drafter__memory="reserved"), Pause())
    shared, state, held = run(full(order), Pause())
    own, _, _ = run(full(order, drafter__kv_share=0.0), Pause())
    assert min(always[LONG:-1]) > 0
    assert max(held[LONG:]) == 0
    assert state.engine["given_back"][0] > 0
    assert mean_running(shared, LONG) > 1.6 * mean_running(reserved, LONG)
    assert mean_running(shared, LONG) > 0.9 * mean_running(own, LONG)
    assert len(shared.seen) < 0.8 * len(reserved.seen)


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_given_back_while_every_step_drafts(order: str) -> None:
    never = Pause(0, 0)
    reserved, _, _ = run(full(order, drafter__memory="reserved"), never)
    shared, state, _ = run(full(order), never)
    assert state.engine["given_back"][0] == 0
    assert [o.emitted.tolist() for _, _, o in shared.seen] == [o.emitted.tolist() for _, _, o in reserved.seen]


@pytest.mark.parametrize("order", ORDERS)
def test_memory_is_taken_again_while_requests_wait(order: str) -> None:
    steps, _, held = run(full(order, workload__requests=120), Pause(0, LONG))
    assert steps.seen[LONG + IDLE_STEPS][0].waiting_requests > 0
    assert max(held[LONG - 20 : LONG]) == 0
    # Two requests of up to 320 tokens must have ended before the drafter's blocks fit.
    later = [(view, outcome) for view, _, outcome in steps.seen if view.step > LONG + 2 * 320]
    decoding = sum(int((view.phase != Phase.PREFILL).sum()) for view, _ in later)
    assert sum(int((outcome.drafted > 0).sum()) for _, outcome in later) > 0.8 * decoding


@pytest.mark.parametrize("order", ORDERS)
def test_the_lag_after_giving_back_is_the_whole_context(order: str) -> None:
    steps, _, _ = run(full(order, workload__requests=120, drafter__batch=False), Pause(3, LONG))
    off = [view for view, _, _ in steps.seen if LONG - 20 < view.step < LONG]
    for view in off:
        old = view.phase == Phase.DECODE
        assert (view.drafter_lag_tokens[old] >= view.context_tokens[old] - 2).all()


def test_a_request_that_fills_the_cache_runs_without_the_drafter() -> None:
    large = {"distribution": "constant", "tokens": 1000}
    steps, state, _ = run(full("after_draft", chat__prompt_tokens=large, workload__requests=3), Pause(0, 0))
    assert np.isfinite(state.offered["latency"]).all()
    assert all((view.draft_limits == 0).all() for view, _, _ in steps.seen)


@pytest.mark.parametrize("changes", [{"kept_tokens": 100}, {"first_pass_every_step": True}, {"memory": "reserved"}])
def test_memory_is_reserved_where_the_drafter_could_not_return(changes: dict[str, Any]) -> None:
    made = scenario(drafter={"max_draft": 5, "kv_share": 0.5, **changes})
    assert not made.engine(0)["gives_back"][0]
    assert scenario(drafter={"max_draft": 5, "kv_share": 0.5}).engine(0)["gives_back"][0]
