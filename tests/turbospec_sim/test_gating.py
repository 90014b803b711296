"""Gates in the simulator: drafts that end on the drafter's simulated confidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.turbospec_sim.scenarios import Steps, closed, scenario, serve, state_of
from turbospec.interface import BoolArray, FloatArray, IntArray, Source, StepOutcome, StepPlan, StepView
from turbospec.policy.adaptive.config import AdaptiveConfig
from turbospec.policy.static import StaticPolicy
from turbospec_sim.gating import gated_drafts

ORDERS = ("before_draft", "after_draft")
GATED: dict[str, Any] = {"drafter__batch": False, "drafter__calls_gate": True, "drafter__confidence_correlation": 0.8}
LOOKUP = {
    "repeat_tokens": {"distribution": "geometric", "mean": 12, "low": 8},
    "gap_tokens": {"distribution": "geometric", "mean": 12, "low": 8},
    "min_match": 3,
    "false_match": 0.3,
    "false_acceptance": 0.5,
}


class Threshold:
    """A gate that ends a draft at a token of low confidence, which it drops."""

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        sure = confidence >= 0.8
        return sure, np.ones(len(rows), np.bool_)


class Cautious:
    """Drafts up to the limits, from the look-up where it finds something, until the drafter is not sure."""

    def plan(self, view: StepView) -> StepPlan:
        if view.lookup is None:
            return StepPlan(view.draft_limits.copy(), gate=Threshold())
        sources = (view.lookup.lengths > 0).astype(np.int64)
        return StepPlan(np.where(sources, view.lookup.lengths, view.draft_limits), gate=Threshold(), sources=sources)

    def observe(self, outcome: StepOutcome) -> None:
        pass


def test_a_gate_ends_drafts_and_drops_tokens() -> None:
    confidence = np.array([[0.9, 0.9, 0.5, 0.9], [0.5, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9]])
    proposed, kept = gated_drafts(Threshold(), np.array([4, 4, 2, 0]), confidence)
    assert proposed.tolist() == [3, 1, 2, 0]
    assert kept.tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cache_tokens", [100_000, 700])
def test_what_a_gate_ends_is_neither_drafted_nor_verified(order: str, cache_tokens: int) -> None:
    steps = Steps()
    serve(state_of(closed(4, server__emit=order, server__kv_cache_tokens=cache_tokens, **GATED)), Cautious(), steps)
    drafting = [outcome for _, plan, outcome in steps.seen if plan.draft_lengths.any()]
    assert len(drafting) > 50
    for outcome in drafting:
        assert outcome.confidence is not None
        made = np.arange(outcome.confidence.shape[1]) < outcome.proposed[:, None]
        np.testing.assert_array_equal(np.isnan(outcome.confidence), ~made)
        # All tokens but the last were sure; the last one is dropped where it was not.
        np.testing.assert_array_equal(outcome.drafted, ((outcome.confidence >= 0.8) & made).sum(axis=1))
        if cache_tokens > 700:
            np.testing.assert_array_equal(outcome.draft_rows, made.sum(axis=0)[: outcome.proposed.max()])
    assert sum(int((outcome.drafted < outcome.proposed).sum()) for outcome in drafting) > 50


@pytest.mark.parametrize("order", ORDERS)
def test_the_look_ups_drafts_pass_no_gate(order: str) -> None:
    steps = Steps()
    serve(state_of(closed(4, chat__lookup=LOOKUP, server__emit=order, **GATED)), Cautious(), steps)
    copied = 0
    for _, plan, outcome in steps.seen:
        if plan.sources is None or outcome.confidence is None:
            continue
        rows = (plan.sources == Source.LOOKUP) & (outcome.emitted > 0)
        np.testing.assert_array_equal(outcome.drafted[rows], plan.draft_lengths[rows])
        copied += int(outcome.drafted[rows].sum())
    assert copied > 100


def test_without_a_gate_the_same_drafts_are_made_and_confidence_is_reported() -> None:
    def outcomes(**changes: Any) -> list[StepOutcome]:
        steps = Steps()
        serve(state_of(closed(4, drafter__batch=False, **changes)), StaticPolicy(3), steps)
        return [outcome for _, _, outcome in steps.seen]

    plain, gated = outcomes(), outcomes(drafter__calls_gate=True)
    assert [each.accepted.tolist() for each in plain] == [each.accepted.tolist() for each in gated]
    assert all(each.confidence is None for each in plain)
    assert all((each.confidence is not None) == bool(each.drafted.any()) for each in gated)


def test_adaptive_earns_more_where_its_gate_is_asked() -> None:
    def tokens_per_second(calls_gate: bool) -> float:
        state = state_of(
            closed(
                1,
                server__emit="before_draft",
                workload__requests=60,
                drafter__batch=False,
                drafter__calls_gate=calls_gate,
                drafter__confidence_correlation=0.8,
            )
        )
        engine = serve(state, AdaptiveConfig(version=1, policy="adaptive").build(None, 0))
        return float(state.offered["output_tokens"].sum()) / engine.now

    assert tokens_per_second(True) > 1.03 * tokens_per_second(False)


@pytest.mark.parametrize("changes", [{"drafter__batch": True}, {"drafter__kind": "parallel"}])
def test_only_drafters_whose_requests_end_alone_ask_a_gate(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="`calls_gate` needs `kind: sequential` and `batch: false`"):
        scenario(**(GATED | changes))
