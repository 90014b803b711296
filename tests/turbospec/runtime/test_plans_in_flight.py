"""The bounded memory of plans in flight."""

from __future__ import annotations

from turbospec.runtime.plans_in_flight import PlansInFlight


def test_gives_back_what_was_put_once() -> None:
    plans = PlansInFlight[str]()
    plans.put(3, "three")
    assert plans.pop(3) == "three"
    assert plans.pop(3) is None


def test_forgets_the_oldest_when_outcomes_never_come() -> None:
    plans = PlansInFlight[int]()
    for step in range(1000):
        plans.put(step, step)
    assert len(plans) == PlansInFlight.CAPACITY
    assert plans.pop(0) is None
    assert plans.pop(999) == 999
