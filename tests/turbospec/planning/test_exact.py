"""The planner against brute force, and the shape of what it returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.planning.steps import brute_force, problems, value
from turbospec.interface import FloatArray
from turbospec.planning.exact import StepCosts, plan_draft_lengths

Problem = tuple[FloatArray, StepCosts, float, np.random.Generator]


@settings(max_examples=2500, deadline=None)
@given(problems())
def test_equals_brute_force(problem: Problem) -> None:
    gains, costs, price, _ = problem
    plan = plan_draft_lengths(gains, costs, price)
    free = np.zeros(len(gains))
    assert plan.value(price) == pytest.approx(brute_force(gains, costs, price, free), abs=1e-9)
    assert plan.value(price) == pytest.approx(value(plan.draft_lengths, gains, costs, price, free), abs=1e-9)


@settings(max_examples=400, deadline=None)
@given(problems(), st.floats(0.005, 0.03))
def test_equals_brute_force_within_a_deadline(problem: Problem, max_seconds: float) -> None:
    gains, costs, price, _ = problem
    plan = plan_draft_lengths(gains, costs, price, max_seconds=max_seconds)
    best = brute_force(gains, costs, price, np.zeros(len(gains)), max_seconds)
    assert plan.value(price) == pytest.approx(best, abs=1e-9)
    assert plan.seconds <= max(max_seconds, costs.verify[0]) + 1e-12


@settings(max_examples=1000, deadline=None)
@given(problems(), st.sets(st.integers(0, 4)), st.floats(0.0, 5e-3), st.sampled_from([np.inf, 0.012, 0.02]))
def test_equals_brute_force_with_full_graphs(
    problem: Problem, lengths: set[int], piecewise: float, max_seconds: float
) -> None:
    gains, costs, price, _ = problem
    costs.draft_token = 0.0
    costs = costs.with_graphs(tuple(sorted(each for each in lengths if each <= gains.shape[1])), piecewise)
    plan = plan_draft_lengths(gains, costs, price, max_seconds=max_seconds)
    free = np.zeros(len(gains))
    own = value(plan.draft_lengths, gains, costs, price, free, plan.padded_length)
    assert plan.value(price) == pytest.approx(own, abs=1e-9)
    assert own == pytest.approx(brute_force(gains, costs, price, free, max_seconds), abs=1e-9)
    assert plan.padded_length in (0, *costs.graph_lengths)
    assert plan.padded_length == 0 or plan.draft_lengths.max() <= plan.padded_length


def test_unequal_drafts_are_padded_where_the_graph_saves_more_than_the_padding_takes() -> None:
    gains = np.array([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7], [0.9, 0.0, 0.0]])  # the third request is near its end
    verify = 0.015 + 1e-4 * np.arange(10)
    plain = StepCosts(verify, draft_pass=1e-3)
    assert plan_draft_lengths(gains, plain.with_graphs((0, 1, 3), 2e-3), 200.0).padded_length == 3
    cheap = plan_draft_lengths(gains, plain.with_graphs((0, 1, 3), 1e-5), 200.0)
    assert (cheap.padded_length, cheap.draft_lengths.tolist()) == (0, [3, 3, 1])
    assert cheap.seconds == pytest.approx(verify[7] + 3e-3 + 1e-5)


def test_a_step_without_drafts_runs_piecewise_where_0_has_no_graph() -> None:
    costs = StepCosts(np.array([0.01, 0.011])).with_graphs((1,), 2e-3)
    assert costs.verify.tolist() == [0.012, 0.011]
    assert StepCosts(np.array([0.01])).with_graphs((), 2e-3).verify.tolist() == [0.01]


@settings(max_examples=300, deadline=None)
@given(problems())
def test_a_shorter_verify_table_caps_the_draft_tokens(problem: Problem) -> None:
    gains, costs, price, rng = problem
    costs.verify = costs.verify[: int(rng.integers(1, len(costs.verify) + 1))]
    plan = plan_draft_lengths(gains, costs, price)
    assert plan.draft_lengths.sum() < len(costs.verify)
    assert plan.value(price) == pytest.approx(brute_force(gains, costs, price, np.zeros(len(gains))), abs=1e-9)


@settings(max_examples=400, deadline=None)
@given(problems(), st.floats(0.005, 0.03))
def test_a_plan_with_request_costs_is_consistent_and_never_worse_than_no_draft(
    problem: Problem, max_seconds: float
) -> None:
    gains, costs, price, rng = problem
    request_seconds = rng.exponential(1e-3, len(gains)) * (rng.random(len(gains)) < 0.6)
    plan = plan_draft_lengths(gains, costs, price, request_seconds=request_seconds, max_seconds=max_seconds)
    own = value(plan.draft_lengths, gains, costs, price, request_seconds)
    assert plan.value(price) == pytest.approx(own, abs=1e-9)
    assert -price * costs.verify[0] - 1e-9 <= own
    assert own <= brute_force(gains, costs, price, request_seconds, max_seconds) + 1e-9
    assert plan.seconds <= max(max_seconds, costs.verify[0]) + 1e-12


def test_request_costs_lose_less_than_a_hundredth_of_the_optimum() -> None:
    rng = np.random.default_rng(11)
    found = optimum = 0.0
    for _ in range(1500):
        n, depth = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        gains = np.cumprod(rng.uniform(0.2, 1, (n, depth)), axis=1)
        costs = StepCosts(0.008 + rng.uniform(0, 5e-4) * np.arange(n * depth + 1), 3e-4, rng.uniform(2e-4, 2e-3), 2e-5)
        price = n / 0.009 * rng.uniform(0.8, 2.5)
        request_seconds = rng.exponential(1e-3, n) * (rng.random(n) < 0.4)
        plan = plan_draft_lengths(gains, costs, price, request_seconds=request_seconds)
        nothing = -price * costs.verify[0]
        own = value(plan.draft_lengths, gains, costs, price, request_seconds)
        assert plan.value(price) == pytest.approx(own, abs=1e-9)
        found += plan.value(price) - nothing
        optimum += brute_force(gains, costs, price, request_seconds) - nothing
    assert found >= 0.99 * optimum


def test_nothing_to_draft() -> None:
    costs = StepCosts(np.array([0.008]))
    plan = plan_draft_lengths(np.zeros((3, 4)), costs, 100.0)
    assert plan.draft_lengths.tolist() == [0, 0, 0]
    assert plan.seconds == 0.008


def test_a_padded_pass_is_filled() -> None:
    # Graph padding to multiples of 8: with one request and a free drafter, 7 more tokens cost nothing.
    verify = 0.008 * np.ceil(np.arange(1, 17) / 8)
    plan = plan_draft_lengths(np.cumprod(np.full((1, 15), 0.5))[None], StepCosts(verify), 100.0)
    assert plan.draft_lengths.tolist() == [7]
