"""The planner against brute force, and the shape of what it returns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.interface import FloatArray, IntArray
from turbospec.planning.exact import StepCosts, plan_draft_lengths


def brute_force(
    gains: FloatArray, costs: StepCosts, price: float, charges: FloatArray, max_seconds: float = np.inf
) -> float:
    """Value of the best plan over all (K + 1)^n of them."""
    n, depth = gains.shape
    cumulative = np.concatenate([np.zeros((n, 1)), np.cumsum(gains, axis=1)], axis=1)
    best = -price * costs.verify[0]
    for lengths in itertools.product(range(depth + 1), repeat=n):
        k = np.array(lengths)
        if k.sum() >= len(costs.verify):
            continue
        seconds = costs.seconds(k) + charges[k > 0].sum()
        if seconds <= max_seconds:
            best = max(best, cumulative[np.arange(n), k].sum() - price * seconds)
    return best


def value(lengths: IntArray, gains: FloatArray, costs: StepCosts, price: float, charges: FloatArray) -> float:
    drafted = np.arange(gains.shape[1]) < lengths[:, None]
    return (gains * drafted).sum() - price * (costs.seconds(lengths) + charges[lengths > 0].sum())


@st.composite
def problems(draw: st.DrawFn) -> tuple[FloatArray, StepCosts, float, np.random.Generator]:
    """Small steps with any survival, and verify tables of floors, slopes and padding steps."""
    n, depth = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Rounded, so that ties are common.
    gains = np.cumprod(rng.uniform(0, 1, (n, depth)).round(draw(st.sampled_from([1, 2, 6]))), axis=1)
    gains *= np.arange(depth) < rng.integers(0, depth + 1, (n, 1))
    kind = draw(st.sampled_from(["flat", "affine", "padded", "arbitrary"]))
    tokens = np.arange(n * depth + 1)
    verify = {
        "flat": np.full(len(tokens), 0.008),
        "affine": 0.008 + rng.uniform(0, 1e-3) * tokens,
        "padded": 0.008 + 2e-3 * np.ceil(tokens / 3),
        "arbitrary": 0.008 + np.cumsum(rng.exponential(5e-4, len(tokens)) * (rng.random(len(tokens)) < 0.5)),
    }[kind]
    costs = StepCosts(verify, rng.uniform(0, 1e-3), rng.uniform(0, 2e-3), rng.uniform(0, 3e-4))
    return gains, costs, draw(st.floats(0.0, 2000.0)), rng


@settings(max_examples=2500, deadline=None)
@given(problems())
def test_equals_brute_force(problem: tuple[FloatArray, StepCosts, float, np.random.Generator]) -> None:
    gains, costs, price, _ = problem
    plan = plan_draft_lengths(gains, costs, price)
    free = np.zeros(len(gains))
    assert plan.value(price) == pytest.approx(brute_force(gains, costs, price, free), abs=1e-9)
    assert plan.value(price) == pytest.approx(value(plan.draft_lengths, gains, costs, price, free), abs=1e-9)


@settings(max_examples=400, deadline=None)
@given(problems(), st.floats(0.005, 0.03))
def test_equals_brute_force_within_a_deadline(
    problem: tuple[FloatArray, StepCosts, float, np.random.Generator], max_seconds: float
) -> None:
    gains, costs, price, _ = problem
    plan = plan_draft_lengths(gains, costs, price, max_seconds=max_seconds)
    best = brute_force(gains, costs, price, np.zeros(len(gains)), max_seconds)
    assert plan.value(price) == pytest.approx(best, abs=1e-9)
    assert plan.seconds <= max(max_seconds, costs.verify[0]) + 1e-12


def test_charges_lose_less_than_a_hundredth() -> None:
    rng = np.random.default_rng(11)
    found = optimum = 0.0
    for _ in range(1500):
        n, depth = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        gains = np.cumprod(rng.uniform(0.2, 1, (n, depth)), axis=1)
        costs = StepCosts(0.008 + rng.uniform(0, 5e-4) * np.arange(n * depth + 1), 3e-4, rng.uniform(2e-4, 2e-3), 2e-5)
        price = n / 0.009 * rng.uniform(0.8, 2.5)
        charges = rng.exponential(1e-3, n) * (rng.random(n) < 0.4)
        plan = plan_draft_lengths(gains, costs, price, request_seconds=charges)
        nothing = -price * costs.verify[0]
        assert plan.value(price) == pytest.approx(value(plan.draft_lengths, gains, costs, price, charges), abs=1e-9)
        found += plan.value(price) - nothing
        optimum += brute_force(gains, costs, price, charges) - nothing
    assert found >= 0.99 * optimum


def test_nothing_to_draft() -> None:
    costs = StepCosts(np.array([0.008]))
    plan = plan_draft_lengths(np.zeros((3, 4)), costs, 100.0)
    assert plan.draft_lengths.tolist() == [0, 0, 0]
    assert plan.seconds == 0.008


def test_free_places_in_a_padded_pass_are_filled() -> None:
    # Graph padding to multiples of 8: with one request and a free drafter, 7 more tokens cost nothing.
    verify = 0.008 * np.ceil(np.arange(1, 17) / 8)
    plan = plan_draft_lengths(np.cumprod(np.full((1, 15), 0.5))[None], StepCosts(verify), 100.0)
    assert plan.draft_lengths.tolist() == [7]
