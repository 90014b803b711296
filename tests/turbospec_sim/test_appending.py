"""A simulated look-up that searches again after drafting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.turbospec_sim.scenarios import LookupPolicy, Steps, closed, scenario, serve, state_of
from tests.turbospec_sim.test_gating import GATED, Threshold
from tests.turbospec_sim.test_repeats import GEOMETRIC, seen, served
from turbospec.interface import FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec.policy.adaptive.config import AdaptiveConfig
from turbospec.policy.static import StaticPolicy

APPENDS: dict[str, Any] = {"drafter__appends_lookup": True, "server__emit": "before_draft"}
FALSE = {"min_match": 3, "false_match": 0.3, "false_acceptance": 0.6}


class Half:
    """A selection that verifies two tokens of every second draft, and the other drafts as a whole."""

    def select(self, proposed: IntArray, confidence: FloatArray) -> IntArray:
        return np.where(np.arange(len(proposed)) % 2, np.minimum(proposed, 2), proposed)


class Appending:
    """Drafts 4 tokens of the drafter for every request, and lets the look-up append up to 6."""

    def __init__(self, *, gate: bool = False, selection: bool = False) -> None:
        self.gate, self.selection = Threshold() if gate else None, Half() if selection else None

    def plan(self, view: StepView) -> StepPlan:
        lengths = np.minimum(view.draft_limits, 4)
        limits = np.where(lengths > 0, 6, 0)
        sources = np.zeros(view.size, np.int64)
        return StepPlan(lengths, gate=self.gate, selection=self.selection, sources=sources, append_limits=limits)

    def observe(self, outcome: StepOutcome) -> None:
        pass


def appended(steps: Steps) -> list[tuple[int, int, int, int, int]]:
    """Request, output position, tokens of the drafter, appended tokens and accepted ones of each judged draft."""
    rows: list[tuple[int, int, int, int, int]] = []
    for view, _, outcome in steps.seen:
        assert outcome.appended is not None
        for row in np.flatnonzero((outcome.drafted > 0) & ~outcome.truncated):
            own = int(outcome.drafted[row] - outcome.appended[row])
            rows.append(
                (
                    int(view.request_ids[row]),
                    int(view.emitted_tokens[row]),
                    own,
                    int(outcome.appended[row]),
                    int(outcome.accepted[row]),
                )
            )
    return rows


@pytest.mark.parametrize("lookup", [GEOMETRIC | {"min_match": 3}, GEOMETRIC | FALSE])
def test_after_a_right_draft_it_finds_and_drafts_what_it_would_from_there(lookup: dict[str, Any]) -> None:
    right = {"chat__acceptance": {"process": "iid", "rate": 1.0}}
    everywhere = seen(served(lookup, StaticPolicy(0), **right, **APPENDS)[1])
    drafts = seen(served(lookup, LookupPolicy(6), **right, **APPENDS)[1])
    rows = appended(served(lookup, Appending(), **right, **APPENDS)[1])
    compared = 0
    for request, position, own, more, accepted in rows:
        if position + own + 6 >= 300:
            continue  # the end of the output leaves no room
        assert (more > 0) == (everywhere[request, position + own][0] > 0)
        assert accepted >= own
        there = drafts.get((request, position + own))
        if more == 6 and there is not None and there[3] and there[1] >= 6:
            assert accepted - own == there[2]
            compared += 1
    assert compared > 50
    assert len({more > 0 for *_, more, _ in rows}) == 2


def test_after_a_wrong_draft_it_finds_no_repeat_and_nothing_is_accepted() -> None:
    wrong = {"chat__acceptance": {"process": "iid", "rate": 0.0}}
    assert not any(more for *_, more, _ in appended(served(GEOMETRIC, Appending(), **wrong, **APPENDS)[1]))
    rows = appended(served(GEOMETRIC | FALSE, Appending(), **wrong, **APPENDS)[1])
    assert np.mean([more > 0 for *_, more, _ in rows]) == pytest.approx(0.3, abs=0.03), "false matches"
    assert not any(accepted for *_, accepted in rows)


def test_no_more_is_appended_than_the_look_up_drafts() -> None:
    rows = appended(served(GEOMETRIC | FALSE, Appending(), drafter__max_draft=8, drafter__max_lookup=2, **APPENDS)[1])
    assert max(more for *_, more, _ in rows) == 2


@pytest.mark.parametrize("cache_tokens", [100_000, 1500])
def test_drafts_with_appended_tokens_fit_the_cache_and_the_request(cache_tokens: int) -> None:
    made = closed(8, chat__lookup=GEOMETRIC | FALSE, server__kv_cache_tokens=cache_tokens, **APPENDS)
    state, steps = state_of(made), Steps()
    engine = serve(state, Appending(), steps)
    assert engine.controller.stats.host_faults == 0
    assert sum(more for *_, more, _ in appended(steps)) > 100
    assert bool(state.engine["preemptions"][0]) is (cache_tokens == 1500)
    assert state.engine["free_blocks"][0] == state.engine["num_blocks"][0], "all blocks are free in the end"
    for view, _, outcome in steps.seen:
        assert (outcome.drafted <= np.maximum(view.tokens_left - 1, 0)).all()
    assert int(state.offered["output_tokens"].sum()) == sum(int(outcome.emitted.sum()) for *_, outcome in steps.seen)


def test_nothing_is_appended_to_a_draft_that_a_gate_ended() -> None:
    made = closed(4, chat__lookup=GEOMETRIC | FALSE, **(GATED | APPENDS))
    steps = Steps()
    assert serve(state_of(made), Appending(gate=True), steps).controller.stats.host_faults == 0
    whole = ended = 0
    for _, plan, outcome in steps.seen:
        assert outcome.appended is not None
        cut = outcome.proposed - outcome.appended < plan.draft_lengths
        dropped = outcome.drafted < outcome.proposed
        assert not outcome.appended[cut | dropped].any()
        ended += int((cut | dropped).sum())
        whole += int((outcome.appended > 0).sum())
    assert whole > 20
    assert ended > 20


def test_nothing_is_appended_to_a_draft_that_a_selection_cut() -> None:
    steps = Steps()
    engine = serve(state_of(closed(4, chat__lookup=GEOMETRIC | FALSE, **APPENDS)), Appending(selection=True), steps)
    assert engine.controller.stats.host_faults == 0
    whole = 0
    for _, plan, outcome in steps.seen:
        assert outcome.appended is not None
        cut = (np.arange(len(plan.draft_lengths)) % 2 > 0) & (plan.draft_lengths > 2)
        assert not outcome.appended[cut].any()
        assert (outcome.drafted[cut] <= 2).all()
        whole += int((outcome.appended > 0).sum())
    assert whole > 20


def test_a_search_after_drafting_costs_what_one_before_it_does() -> None:
    def seconds(policy: Appending | StaticPolicy) -> float:
        made = closed(1, chat__lookup=GEOMETRIC, workload__requests=10, latency__lookup_request_seconds=1e-3, **APPENDS)
        state, steps = state_of(made), Steps()
        serve(state, policy, steps)
        searches = sum(int((plan.draft_lengths > 0).sum()) for _, plan, _ in steps.seen)
        host = state.totals["host_seconds"][0] - 2e-3 * len(steps.seen)  # a step's own, and its search before drafting
        return host / max(searches, 1)

    assert seconds(Appending()) == pytest.approx(1e-3)
    assert seconds(StaticPolicy(3)) == pytest.approx(0.0, abs=1e-9)


def test_adaptive_appends_where_it_pays() -> None:
    def rate(**changes: Any) -> tuple[float, int]:
        lookup = GEOMETRIC | {"min_match": 3, "repeat_tokens": {"distribution": "geometric", "mean": 24, "low": 8}}
        made = closed(
            4,
            workload__requests=60,
            chat__output_tokens={"distribution": "constant", "tokens": 300},
            chat__lookup=lookup,
            chat__acceptance={"process": "iid", "rate": 0.85},
            drafter__batch=False,
            server__emit="before_draft",
            latency__verify_token_seconds=1e-5,
            **changes,
        )
        state, steps = state_of(made), Steps()
        engine = serve(state, AdaptiveConfig(version=1, policy="adaptive").build(None, 0), steps)
        more = sum(int(outcome.appended.sum()) for *_, outcome in steps.seen if outcome.appended is not None)
        return float(state.offered["output_tokens"].sum()) / engine.now, more

    without, none = rate()
    with_appended, some = rate(drafter__appends_lookup=True)
    assert none == 0
    assert some > 100
    assert with_appended > 1.02 * without


@pytest.mark.parametrize("changes", [{"server__emit": "after_draft"}, {"chat__lookup": None}])
def test_only_an_engine_with_a_look_up_that_drafts_first_appends(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"`drafter\.appends_lookup` needs"):
        scenario(**(APPENDS | {"chat__lookup": GEOMETRIC} | changes))
