"""CONTRIBUTING's recipe for a host: the example drives real policies, and they adapt to its drafter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.examples.host import MAX_DRAFT, serve
from turbospec.controller import GuardConfig
from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.policy import load_controller

PROMPTS = [100, 40, 70, 10]


def test_a_fixed_length_is_drafted_to_the_end_of_each_request():
    # Each request's last token leaves no room for a draft, and the ones before it room for 1 or 2 only.
    assert 2.9 < serve(load_controller("static-3"), PROMPTS, 200, acceptance=0.5) < 3.0


@pytest.mark.parametrize(("acceptance", "least", "most"), [(0.9, 3.0, MAX_DRAFT), (0.0, 0.0, 0.5)])
def test_adaptive_drafts_where_the_drafter_is_right_and_not_where_it_is_wrong(acceptance, least, most):
    controller = load_controller("adaptive")
    controller.guard = GuardConfig(max_decision_seconds=60.0)
    assert least < serve(controller, PROMPTS, 200, acceptance) < most
    assert controller.stats.last_fault == ""


def test_views_and_outcomes_keep_the_contract():
    views: list[StepView] = []
    outcomes: list[StepOutcome] = []

    class Longest:
        def plan(self, view):
            views.append(view)
            return StepPlan(view.draft_limits)

        def observe(self, outcome):
            outcomes.append(outcome)

    serve(Longest(), PROMPTS, 30, acceptance=0.7)
    assert views[0].prefill_tokens == sum(PROMPTS)
    assert sum(int(outcome.emitted.sum()) for outcome in outcomes) == 30 * len(PROMPTS)
    for view, outcome in zip(views, outcomes, strict=True):
        assert outcome.step == view.step
        assert outcome.request_ids.tolist() == view.request_ids.tolist()
        assert (outcome.accepted <= outcome.drafted).all()
        assert (outcome.emitted <= view.tokens_left).all()
        assert (view.draft_limits < np.maximum(view.tokens_left, 1)).all()
        assert outcome.draft_rows.sum() == outcome.drafted.sum()
        assert outcome.tokens_batched == view.size + outcome.drafted.sum() + (
            view.prefill_tokens - len(PROMPTS) if view.prefill_tokens else 0
        )
