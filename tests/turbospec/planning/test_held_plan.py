"""Plans kept over short steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.turbospec.factories import make_view
from turbospec.interface import StepPlan, StepView
from turbospec.planning.gate import GatePrices, SurvivalGate
from turbospec.planning.held_plan import HeldPlan, steps_without_drafts


def held(view: StepView, *, seconds: float = 0.005, gate: SurvivalGate | None = None) -> HeldPlan | None:
    lengths = np.full(view.size, 3, np.int64)
    return HeldPlan.of(StepPlan(lengths, predicted_tokens=9.0, predicted_seconds=seconds, gate=gate), view)


@pytest.mark.parametrize(("seconds", "steps"), [(0.030, 0), (0.015, 1), (0.010, 2), (0.001, 3)])
def test_the_shorter_the_steps_the_longer(seconds: float, steps: int) -> None:
    plan = held(make_view(step=5), seconds=seconds)
    again = [plan is not None and plan.again(make_view(step=5 + later)) is not None for later in range(1, 6)]
    assert again == [later <= steps for later in range(1, 6)]


def test_steps_that_the_engine_ran_by_itself_count() -> None:
    plan = held(make_view(step=5), seconds=0.001)
    assert plan is not None
    assert plan.again(make_view(step=5 + 16)) is None


def test_drafts_never_pass_the_limits_of_the_new_step() -> None:
    plan = held(make_view(4))
    assert plan is not None
    again = plan.again(make_view(4, draft_limits=np.array([0, 2, 3, 9])))
    assert again is not None
    assert again.draft_lengths.tolist() == [0, 2, 3, 3]


def test_another_batch_or_a_prompt_ends_it() -> None:
    for other in (make_view(3), make_view(4, request_ids=np.array([0, 1, 2, 9])), make_view(4, prefill_tokens=50)):
        plan = held(make_view(4))
        assert plan is not None
        assert plan.again(other) is None


def test_a_step_with_a_prompt_is_not_kept_nor_one_whose_time_nobody_knows() -> None:
    assert held(make_view(prefill_tokens=50)) is None
    assert held(make_view(), seconds=float("nan")) is None


def test_every_step_has_a_gate_of_its_own() -> None:
    gate = SurvivalGate(np.full(13, 0.9), np.ones(1), np.full((1, 15), 0.9), np.array([3]), GatePrices(0.1, 0.02, 0.01))
    plan = held(make_view(1), gate=gate)
    assert plan is not None
    for _ in range(2):
        again = plan.again(make_view(1))
        assert again is not None
        assert again.gate is not None
        more = [bool(again.gate.advance(np.array([0]), np.array([0.9]))[1][0]) for _ in range(3)]
        assert more == [True, True, False]


@pytest.mark.parametrize(
    ("seconds", "in_a_row", "steps"), [(0.005, 0, 10), (0.005, 2, 40), (0.020, 1, 5), (0.020, 99, 40)]
)
def test_nothing_is_drafted_for_longer_the_longer_nothing_was(seconds: float, in_a_row: int, steps: int) -> None:
    assert steps_without_drafts(seconds, in_a_row) == steps


@pytest.mark.parametrize(("seconds", "steps"), [(1e-6, 64), (0.0, 1), (math.nan, 1)])
def test_nothing_is_drafted_for_a_while_at_most(seconds: float, steps: int) -> None:
    assert steps_without_drafts(seconds) == steps
