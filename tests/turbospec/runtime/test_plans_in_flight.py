"""State of plans in flight: returned once, bounded."""

from __future__ import annotations

from turbospec.runtime.plans_in_flight import PlansInFlight


def test_a_state_is_returned_once() -> None:
    plans = PlansInFlight[str]()
    plans.put(3, "three")
    assert plans.pop(3) == "three"
    assert plans.pop(3) is None


def test_the_oldest_are_dropped_where_outcomes_never_arrive() -> None:
    plans = PlansInFlight[int]()
    for step in range(1000):
        plans.put(step, step)
    assert len(plans) == PlansInFlight.CAPACITY
    assert plans.pop(0) is None
    assert plans.pop(999) == 999


def test_a_second_plan_for_a_step_replaces_the_first() -> None:
    plans = PlansInFlight[str]()
    plans.put(1, "first")
    plans.put(1, "second")
    assert len(plans) == 1
    assert plans.pop(1) == "second"


def test_a_step_that_reuses_a_plan_finds_the_plan_before_it() -> None:
    plans = PlansInFlight[str]()
    assert plans.last(9) is None
    for step in (3, 5, 8):
        plans.put(step, str(step))
    assert [plans.last(step) for step in (2, 3, 4, 5, 7, 8, 99)] == [None, "3", "3", "5", "5", "8", "8"]
    assert len(plans) == 1, "the last one stays for the steps that follow"
    assert plans.last(3) is None


def test_step_numbers_may_go_back() -> None:
    plans = PlansInFlight[str]()
    for step in (1000, 0, 1, 0):
        plans.put(step, str(step))
        assert plans.last(step) == str(step)
    plans.put(1, "1")
    assert [plans.last(step) for step in (0, 1, 2)] == ["0", "1", "1"]
    assert plans.pop(1000) is None
