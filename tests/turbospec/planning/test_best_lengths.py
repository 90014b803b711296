"""The draft lengths of a step where requests have fixed costs, steps replay graphs, or their time is limited."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.turbospec.planning.steps import gain_of
from tests.turbospec.planning.test_gain_histogram import exactly
from turbospec.interface import FloatArray, IntArray
from turbospec.models.latency import VERIFY_KNOTS
from turbospec.planning.best_lengths import best_lengths, consider, shorten, uncounted_gains
from turbospec.planning.exact import plan_draft_lengths
from turbospec.planning.gain_histogram import BINS, LinearCosts, no_draft_seconds, plan_seconds
from turbospec.planning.offers import list_offers

NO_GRAPHS = np.zeros(0, np.int64)


def planned(
    gains: FloatArray,
    costs: LinearCosts,
    price: float,
    fixed_seconds: FloatArray,
    max_seconds: float = math.inf,
    graph_lengths: IntArray = NO_GRAPHS,
) -> tuple[IntArray, int]:
    """Draft lengths and the padded length; arguments as for the exact planner."""
    n, depth = gains.shape
    # The views of the scratch space that a decision works on, so that nothing is compiled for others.
    work, lengths = np.zeros((3, n, depth + 1)), np.zeros(n, np.int64)
    work[0, :, :depth] = gains
    counts, sums = np.zeros((depth + 1, BINS), np.int64), np.zeros((depth + 1, BINS))
    offers = list_offers(np.count_nonzero(gains, axis=1), NO_GRAPHS, NO_GRAPHS)
    survival = work[0, :n, :depth]
    step = uncounted_gains(offers, survival, survival, work[1, :n, :depth], counts, sums, graph_lengths)
    consider(step, costs, price, 0.0, fixed_seconds)
    padded = best_lengths(step, costs, price, fixed_seconds, max_seconds, lengths)
    return lengths, padded


def value(
    gains: FloatArray, costs: LinearCosts, price: float, fixed: FloatArray, lengths: IntArray, padded: int
) -> float:
    seconds = plan_seconds(costs, lengths, len(lengths), padded) + fixed[lengths > 0].sum()
    return gain_of(lengths, gains) - price * float(seconds)


def random_costs(rng: np.random.Generator, n: int) -> LinearCosts:
    slopes = rng.uniform(0.0, 5e-4) * rng.uniform(0.0, 1.0, len(VERIFY_KNOTS) - 1)
    return LinearCosts(slopes, 0.008, n, 0.0, 0.0, 3e-4, float(rng.uniform(2e-4, 2e-3)), 2e-5)


@pytest.mark.parametrize("share", [0.4, 1.0], ids=["some requests", "all requests"])
@pytest.mark.parametrize("mean_seconds", [1e-3, 4e-3])
def test_fixed_costs_lose_less_than_a_hundredth_of_the_best_of_all_plans(mean_seconds: float, share: float) -> None:
    rng = np.random.default_rng(11)
    found = optimum = 0.0
    for _ in range(150):
        n, depth = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        gains = np.cumprod(rng.uniform(0.2, 1, (n, depth)), axis=1)
        costs, fixed = random_costs(rng, n), rng.exponential(mean_seconds, n) * (rng.random(n) < share)
        price = n / 0.009 * rng.uniform(0.8, 2.5)
        lengths, padded = planned(gains, costs, price, fixed)
        nothing = -price * no_draft_seconds(costs)
        every = (np.array(each) for each in itertools.product(range(depth + 1), repeat=n))
        # The decision drafts nothing where the plan is worth less than that.
        found += max(value(gains, costs, price, fixed, lengths, padded), nothing) - nothing
        optimum += max(value(gains, costs, price, fixed, each, 0) for each in every) - nothing
    assert 0.99 * optimum <= found <= optimum + 1e-9


@pytest.mark.parametrize("n", [32, 128])
def test_fixed_costs_of_many_requests_lose_no_more_than_those_of_the_exact_planner(n: int) -> None:
    rng = np.random.default_rng(1)
    found = reference = 0.0
    for _ in range(15):
        gains, costs = np.cumprod(rng.uniform(0.3, 1, (n, 6)), axis=1), random_costs(rng, n)
        fixed = rng.exponential(1e-3, n) * (rng.random(n) < 0.4)
        price = 2 * n / no_draft_seconds(costs)
        lengths, padded = planned(gains, costs, price, fixed)
        nothing = -price * no_draft_seconds(costs)
        found += max(value(gains, costs, price, fixed, lengths, padded), nothing) - nothing
        exact = exactly(costs, 6 * n)
        reference += plan_draft_lengths(gains, exact, price, request_seconds=fixed).value(price) - nothing
    assert found >= 0.995 * reference


def test_drafts_are_padded_where_the_graph_saves_more_than_the_padding_takes() -> None:
    gains, free = np.array([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7], [0.9, 0.0, 0.0]]), np.zeros(3)
    slopes, graphs = np.full(len(VERIFY_KNOTS) - 1, 1e-4), np.array([0, 1, 3])
    dear, cheap = (LinearCosts(slopes, 0.015, 3, 0.0, seconds, 0.0, 1e-3, 0.0) for seconds in (2e-3, 1e-5))
    lengths, padded = planned(gains, dear, 200.0, free, graph_lengths=graphs)
    assert (lengths.tolist(), padded) == ([3, 3, 1], 3)
    lengths, padded = planned(gains, cheap, 200.0, free, graph_lengths=graphs)
    assert (lengths.tolist(), padded) == ([3, 3, 1], 0)
    lengths, padded = planned(gains, dear, 200.0, np.array([0.0, 0.0, 1.0]), graph_lengths=graphs)
    assert padded == 0, "padding has every request draft, also one whose fixed cost is high"


def test_requests_with_most_to_catch_up_wait_where_the_step_would_be_too_long() -> None:
    costs = random_costs(np.random.default_rng(0), 4)
    lengths, lag = np.array([2, 2, 2, 2]), np.array([1e-3, 4e-3, 0.0, 2e-3])
    seconds = float(plan_seconds(costs, np.array([2, 0, 2, 0]), 4, 0)) + 1e-3
    assert shorten(lengths, 4, 0, costs, lag, seconds + 1e-9) == 0
    assert lengths.tolist() == [2, 0, 2, 0]
    assert shorten(lengths, 4, 0, costs, lag, no_draft_seconds(costs)) == 0
    assert lengths.tolist() == [0, 0, 0, 0]
