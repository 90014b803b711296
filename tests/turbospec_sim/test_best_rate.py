"""The best token rate of a step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.planning.steps import all_lengths, gain_of, problems
from turbospec.interface import FloatArray
from turbospec.planning.exact import StepCosts, plan_draft_lengths
from turbospec_sim.best_rate import best_rate


def rate_of(gains: FloatArray, costs: StepCosts, base_tokens: float) -> float:
    plan_at = partial(plan_draft_lengths, gains, costs)
    return best_rate(plan_at, float(costs.verify[0]), base_tokens)


def test_best_rate_is_the_best_ratio_of_tokens_to_time() -> None:
    gains = np.cumprod(np.full((1, 10), 0.7))[None]
    costs = StepCosts(0.008 + 5e-5 * np.arange(11), 3e-4, 1.2e-3, 2e-5)
    ratios = [(1.0 + gains[0, :k].sum()) / costs.seconds(np.array([k])) for k in range(11)]
    rate = rate_of(gains, costs, 1.0)
    assert rate == pytest.approx(max(ratios), rel=1e-6)
    assert plan_draft_lengths(gains, costs, rate).draft_lengths[0] == int(np.argmax(ratios))


@settings(max_examples=300, deadline=None)
@given(problems(), st.floats(0.5, 4.0))
def test_nearly_equals_brute_force(
    problem: tuple[FloatArray, StepCosts, float, np.random.Generator], base_tokens: float
) -> None:
    gains, costs, _, _ = problem
    rates = [(base_tokens + gain_of(plan, gains)) / costs.seconds(plan) for plan in all_lengths(gains, costs)]
    assert rate_of(gains, costs, base_tokens) >= 0.999 * max(rates), "few iterations nearly suffice"
