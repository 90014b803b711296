from __future__ import annotations

import numpy as np
import pytest

from turbospec import StepOutcome, StepPlan, StepView
from turbospec_bench import decision_cost
from turbospec_bench.decision_cost import WARM_UP_STEPS, measure_decisions


class Recorder:
    """Drafts 4 for all and keeps what it was shown."""

    def __init__(self) -> None:
        self.views: list[StepView] = []
        self.outcomes: list[StepOutcome] = []

    def plan(self, view: StepView) -> StepPlan:
        self.views.append(view)
        return StepPlan(np.full(view.size, 4))

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def test_every_step_is_timed_on_consistent_traffic() -> None:
    controller = Recorder()

    cost = measure_decisions(controller, requests=32, max_draft=15, steps=20)

    assert len(cost.total) == 20
    assert bool((cost.plan > 0).all())
    assert len(controller.outcomes) == 20 + WARM_UP_STEPS
    for view, outcome in zip(controller.views, controller.outcomes, strict=True):
        assert view.step == outcome.step
        assert bool((outcome.accepted <= outcome.drafted).all())
        assert outcome.draft_rows.tolist() == [32] * 4


def test_requests_come_and_go() -> None:
    controller = Recorder()

    measure_decisions(controller, requests=64, steps=20)

    first, last = controller.views[0].request_ids, controller.views[-1].request_ids
    assert 0 < len(set(first.tolist()) & set(last.tolist())) < 64


@pytest.mark.parametrize(("cold", "sweeps"), [(False, 0), (True, 2 * (3 + WARM_UP_STEPS))])
def test_caches_are_emptied_before_each_call_if_asked(cold: bool, sweeps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[None] = []
    monkeypatch.setattr(decision_cost, "empty_caches", lambda: swept.append(None))

    measure_decisions(Recorder(), requests=2, steps=3, cold=cold)

    assert len(swept) == sweeps
