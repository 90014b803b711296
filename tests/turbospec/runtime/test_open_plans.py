"""The bounded memory of plans in flight."""

from __future__ import annotations

from turbospec.runtime.open_plans import OpenPlans


def test_gives_back_what_was_put_once() -> None:
    plans = OpenPlans[str]()
    plans.put(3, "three")
    assert plans.pop(3) == "three"
    assert plans.pop(3) is None


def test_forgets_the_oldest_when_outcomes_never_come() -> None:
    plans = OpenPlans[int]()
    for step in range(1000):
        plans.put(step, step)
    assert len(plans) == OpenPlans.CAPACITY
    assert plans.pop(0) is None
    assert plans.pop(999) == 999


def test_a_step_that_reuses_a_plan_finds_the_plan_before_it() -> None:
    plans = OpenPlans[str]()
    assert plans.last(9) is None
    for step in (3, 5, 8):
        plans.put(step, str(step))
    assert [plans.last(step) for step in (2, 3, 4, 5, 7, 8, 99)] == [None, "3", "3", "5", "5", "8", "8"]
    assert len(plans) == 3, "they stay for the steps that follow"
