"""A step's problem: its sums and costs, and both ways to solve it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.factories import make_view
from turbospec.interface import FloatArray, Phase
from turbospec.models.confidence import ConfidenceCalibration
from turbospec.planning.exact import StepCosts
from turbospec.planning.problem import (
    CATCH_UP_HORIZON_TOKENS,
    Batch,
    StepProblem,
    amortise_catch_up,
    fixed_lengths,
    gated_start,
)
from turbospec.planning.stopping import PassValueCache

DEPTH = 6


def a_problem(
    n: int = 4,
    *,
    acceptance: float = 0.8,
    price: float = 400.0,
    catch_up: FloatArray | None = None,
    amortised: FloatArray | None = None,
) -> StepProblem:
    """n requests; 8 ms without drafts, 0.3 ms to start, 0.5 ms per pass, 20 µs per row, 50 µs per verified token."""
    view = make_view(n, max_draft=DEPTH)
    return StepProblem(
        batch=Batch.of(view, view.draft_limits),
        rows=np.arange(n),
        limits=view.draft_limits,
        conditional=np.full((n, DEPTH), acceptance),
        costs=StepCosts(8e-3 + 5e-5 * np.arange(n * DEPTH + 1), 3e-4, 5e-4, 2e-5),
        price=price,
        decode_price=price,
        catch_up_seconds=catch_up,
        amortised_seconds=amortised,
    )


def test_a_batch_is_summed_up() -> None:
    phase = np.array([Phase.PREFILL, Phase.FIRST_DECODE, Phase.DECODE, Phase.DECODE], np.int64)
    view = make_view(
        4, phase=phase, context_tokens=np.array([1, 10, 100, 1000]), drafter_lag_tokens=np.array([0, 2, 0, 5])
    )
    assert Batch.of(view, np.array([0, 3, 4, 5])) == Batch(
        decoding=3, prefilling=1, first_decode=1, context_tokens=1111, drafter_lag_tokens=7, max_draft_tokens=12
    )


def test_catching_up_is_spread_over_the_tokens_that_benefit() -> None:
    left = np.array([1, 20, 1000])
    charged = amortise_catch_up(np.full(3, 0.01), left, np.array([0.0, 1.0, 1.0]))
    assert charged.tolist() == pytest.approx([0.01, 0.001, 0.02 / CATCH_UP_HORIZON_TOKENS])


def test_catch_up_that_is_not_charged_is_deferred() -> None:
    problem = a_problem(catch_up=np.array([4e-3, 3e-3, 2e-3, 1e-3]), amortised=np.full(4, 5e-4))
    lengths = np.array([3, 0, 1, 0])
    assert problem.total_deferred_catch_up(lengths) == pytest.approx(5e-3)
    assert problem.full_draft_seconds == pytest.approx(problem.costs.seconds(problem.limits) + 1e-2)
    without = a_problem()
    assert without.total_deferred_catch_up(lengths) == 0.0
    assert without.full_draft_seconds == without.costs.seconds(without.limits)


@pytest.mark.parametrize(
    ("verify", "expected"),
    [
        (8e-3 + 5e-5 * np.arange(13), (0.0, 5e-5)),
        (np.where(np.arange(13) > 0, 2e-3, 0.0) + 8e-3 + 5e-5 * np.arange(13), (2e-3, 5e-5)),
        (8e-3 + 1e-5 * np.arange(13) ** 2, (0.0, 12e-5)),
        (np.array([8e-3, 8.1e-3, 8.2e-3]), (0.0, 1e-4)),
    ],
    ids=["a line", "a jump", "convex", "short"],
)
def test_verify_costs_are_a_line_through_two_and_four_tokens_per_request(
    verify: FloatArray, expected: tuple[float, float]
) -> None:
    problem = a_problem()
    problem.costs.verify = verify
    assert problem.verify_costs() == pytest.approx(expected)


def test_fixed_lengths_predict_the_tokens_and_the_whole_time() -> None:
    problem = a_problem(catch_up=np.full(4, 1e-3), amortised=np.full(4, 1e-5))
    plan = fixed_lengths(problem, math.inf)
    assert plan is not None
    length = int(plan.draft_lengths[0])
    assert plan.draft_lengths.tolist() == [length] * 4
    assert length > 0
    assert plan.predicted_tokens == pytest.approx(4 + 4 * sum(0.8**j for j in range(1, length + 1)))
    assert plan.predicted_seconds == pytest.approx(problem.costs.seconds(plan.draft_lengths) + 4e-3)
    assert f"{4 * length} draft tokens for 4 requests" in plan.reason
    assert "400 tok/s" in plan.reason


def test_a_limit_on_the_step_counts_all_of_the_catch_up() -> None:
    problem = a_problem(catch_up=np.full(4, 1e-3), amortised=np.full(4, 1e-5))
    assert fixed_lengths(problem, 0.030) is not None
    plan = fixed_lengths(problem, 0.0115)
    assert plan is None or plan.predicted_seconds <= 0.0115
    assert fixed_lengths(problem, problem.no_draft_seconds + 1e-3) is None


def test_no_plan_where_no_draft_pays() -> None:
    problem = a_problem(acceptance=0.1, price=20_000.0)
    calibration = ConfidenceCalibration(4)
    assert fixed_lengths(problem, math.inf) is None
    assert gated_start(problem, PassValueCache(calibration), calibration) is None


def test_a_gated_start_predicts_and_gates() -> None:
    problem = a_problem(price=800.0, catch_up=np.full(4, 1e-3), amortised=np.full(4, 1e-5))
    calibration = ConfidenceCalibration(4)
    plan = gated_start(problem, PassValueCache(calibration), calibration)
    assert plan is not None
    assert plan.draft_lengths.tolist() == [DEPTH] * 4
    assert 4.0 < plan.predicted_tokens < 4.0 + 4 * DEPTH
    # The deferred part of catching up takes time in this step, but is not charged to it.
    deferred = problem.total_deferred_catch_up(plan.draft_lengths)
    assert plan.predicted_seconds > problem.no_draft_seconds + deferred
    assert plan.gate is not None
    keep, more = plan.gate.advance(np.arange(4), np.array([0.99, 0.99, 0.99, 0.01]))
    assert keep.all()
    assert more.tolist() == [True, True, True, False]


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 0.95), st.floats(100.0, 3000.0), st.floats(0.0, 2e-3))
def test_a_higher_price_of_time_never_drafts_more(acceptance: float, price: float, catch_up: float) -> None:
    seconds = np.full(4, catch_up)

    def drafted(price: float) -> int:
        problem = a_problem(acceptance=acceptance, price=price, catch_up=seconds, amortised=seconds / 20)
        plan = fixed_lengths(problem, math.inf)
        return 0 if plan is None else int(plan.draft_lengths.sum())

    assert drafted(1.5 * price) <= drafted(price)
