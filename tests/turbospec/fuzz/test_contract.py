"""A short run of the contract's fuzzing; `python -m tests.turbospec.fuzz.contract` is the long one."""

from __future__ import annotations

import pytest

from tests.turbospec.fuzz.contract import HOSTILE, Fuzz, all_policies
from turbospec import controller
from turbospec.interface import StepOutcome, StepPlan, StepView


@pytest.mark.parametrize("policy", all_policies())
def test_no_view_or_outcome_reaches_a_policy_that_it_could_not_rely_on(policy: str) -> None:
    report = Fuzz(policy, seed=7).run(500)
    assert report.findings == []
    assert report.exceptions == 0
    assert report.host_faults > 50


def test_fuzzing_finds_a_view_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(view: StepView) -> StepView:
        return view

    monkeypatch.setattr(controller, "checked_view", unchecked)
    assert Fuzz("static-3", seed=7).run(100).findings


def test_fuzzing_finds_an_outcome_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(outcome: StepOutcome, view: StepView) -> StepOutcome:
        return outcome

    monkeypatch.setattr(controller, "checked_outcome", unchecked)
    assert Fuzz("static-3", seed=7).run(100).findings


def test_fuzzing_finds_a_plan_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(plan: StepPlan, view: StepView, limits: object) -> StepPlan:
        return plan

    monkeypatch.setattr(controller, "checked_plan", unchecked)
    assert Fuzz(HOSTILE, seed=7).run(500).findings
