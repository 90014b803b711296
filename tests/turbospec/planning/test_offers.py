"""Two sources: which one drafts for each request, against all plans."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.interface import FloatArray, IntArray, Source
from turbospec.models.latency import VERIFY_KNOTS
from turbospec.planning.best_lengths import best_lengths, best_rate, consider, uncounted_gains
from turbospec.planning.gain_histogram import BINS, LinearCosts, no_draft_seconds, plan_seconds
from turbospec.planning.objective import expected_gain
from turbospec.planning.offers import Offers, by_request, choose_sources, list_offers

NO_GRAPHS = np.zeros(0, np.int64)


class Problem(NamedTuple):
    """A step with a look-up."""

    drafter: FloatArray
    """(n, K) survival."""
    lookup: FloatArray
    """(n, K) survival; a row of zeros where nothing was found."""
    costs: LinearCosts
    fixed: FloatArray
    """(n,) seconds to catch up."""

    @property
    def offers(self) -> Offers:
        found = np.count_nonzero(self.lookup, axis=1)
        return Offers(*list_offers(np.count_nonzero(self.drafter, axis=1), found, found))

    @property
    def survival(self) -> FloatArray:
        return np.concatenate([self.drafter, self.lookup[self.offers.request[len(self.drafter) :]]])


def planned(
    problem: Problem, waiting_factor: float = 1.0, graph_lengths: IntArray = NO_GRAPHS
) -> tuple[IntArray, int, float]:
    """(offers,) draft lengths, padded length and λ."""
    offers, survival = problem.offers, problem.survival
    size, depth = survival.shape
    n = offers.requests
    work, lengths, charged = np.zeros((4, size, depth + 1)), np.zeros(size, np.int64), np.zeros(size)
    work[0, :, :depth], charged[:n] = survival, problem.fixed
    counts, sums = np.zeros((depth + 1, BINS), np.int64), np.zeros((depth + 1, BINS))
    rows = work[0, :size, :depth]
    offered = rows if size == n else work[3, :size, :depth]
    gains = uncounted_gains(offers, rows, offered, work[1, :size, :depth], counts, sums, graph_lengths)
    rate, least = best_rate(gains, problem.costs, float(n), charged)
    price = waiting_factor * rate
    if size > n:
        consider(gains, problem.costs, price, least, charged)
    padded = best_lengths(gains, problem.costs, price, charged, math.inf, lengths)
    return lengths, padded, price


def value(problem: Problem, price: float, lengths: IntArray, padded: int = 0) -> float:
    n = len(problem.drafter)
    seconds = plan_seconds(problem.costs, lengths, n, padded) + problem.fixed[lengths[:n] > 0].sum()
    return float(expected_gain(problem.survival, lengths)) - price * float(seconds)


def every_plan(problem: Problem) -> list[IntArray]:
    """All plans in which each request uses one source at most."""
    offers, n = problem.offers, len(problem.drafter)
    choices: list[list[tuple[int, int]]] = []
    for request in range(n):
        own = [(request, length) for length in range(offers.limits[request] + 1)]
        other = offers.other[request]
        if other >= 0:
            own += [(int(other), length) for length in range(1, offers.limits[other] + 1)]
        choices.append(own)
    plans: list[IntArray] = []
    for each in itertools.product(*choices):
        lengths = np.zeros(len(offers.limits), np.int64)
        for offer, length in each:
            lengths[offer] = length
        plans.append(lengths)
    return plans


def random_problem(rng: np.random.Generator, n: int, depth: int) -> Problem:
    def rows(least: float, share: float) -> FloatArray:
        made = np.cumprod(rng.uniform(least, 1.0, (n, depth)), axis=1)
        return made * (np.arange(depth) < rng.integers(1, depth + 1, (n, 1))) * (rng.random((n, 1)) < share)

    slopes = rng.uniform(0.0, 5e-4) * rng.uniform(0.0, 1.0, len(VERIFY_KNOTS) - 1)
    each = float(rng.uniform(1e-4, 2e-3))
    costs = LinearCosts(slopes, 0.008, n, 0.0, 0.0, float(rng.uniform(0, 2e-3)), each, float(rng.uniform(0, 1e-4)))
    fixed = rng.exponential(1e-3, n) * (rng.random(n) < 0.3)
    return Problem(rows(0.3, 0.9), rows(0.1, 0.7), costs, fixed)


@pytest.mark.parametrize("waiting_factor", [1.0, 2.0, 5.0])
@pytest.mark.parametrize(("n", "depth"), [(1, 6), (2, 4), (3, 3), (4, 2)])
def test_the_choice_of_sources_loses_less_than_a_hundredth_of_the_best_of_all_plans(
    n: int, depth: int, waiting_factor: float
) -> None:
    rng = np.random.default_rng(n)
    found = optimum = 0.0
    for _ in range(60):
        problem = random_problem(rng, n, depth)
        lengths, padded, price = planned(problem, waiting_factor)
        nothing = -price * float(no_draft_seconds(problem.costs))
        best = max(value(problem, price, each) for each in every_plan(problem))
        own = max(value(problem, price, lengths, padded), nothing)
        assert own <= best + 1e-9
        found += own - nothing
        optimum += best - nothing
    assert optimum > 0.0
    assert found >= 0.99 * optimum


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 8), st.booleans())
def test_a_request_drafts_from_one_source_within_its_limit(seed: int, n: int, depth: int, graphs: bool) -> None:
    problem = random_problem(np.random.default_rng(seed), n, depth)
    lengths, padded, _ = planned(problem, graph_lengths=np.array([0, 2, 5]) if graphs else NO_GRAPHS)
    offers = problem.offers
    assert (lengths >= 0).all()
    assert (lengths <= offers.limits).all()
    assert padded == 0 or lengths.max() <= padded
    for offer, other in enumerate(offers.other):
        assert other < 0 or lengths[offer] == 0 or lengths[other] == 0
    each, sources = by_request(offers, lengths)
    assert each.sum() == lengths.sum()
    assert (problem.lookup[sources == Source.LOOKUP, 0] > 0.0).all()


def test_without_the_drafter_its_set_up_and_passes_are_saved() -> None:
    """One request of eight has no match; the drafter would be right for it, and dear for one request alone."""
    found = np.tile(np.array([0.9, 0.8, 0.7, 0.6]), (8, 1))
    found[0] = 0.0
    slopes = np.full(len(VERIFY_KNOTS) - 1, 1e-5)
    dear = Problem(
        np.full((8, 4), 0.95) ** np.arange(1, 5), found, LinearCosts(slopes, 8e-3, 8, 0, 0, 4e-3, 4e-3, 0), np.zeros(8)
    )
    lengths, _, _ = planned(dear)
    assert not lengths[:8].any()
    assert (lengths[8:] == 4).all()
    cheap = dear._replace(costs=dear.costs._replace(draft_start=1e-4, draft_pass=1e-4))
    lengths, _, _ = planned(cheap)
    assert lengths[0] == 4, "where it is cheap the request without a match drafts too"
    assert (lengths[1:8] == 4).all(), "and the better source is used for the others"


def test_padding_needs_no_pass_of_the_drafter_where_the_look_up_drafts() -> None:
    found = np.tile(np.array([0.9, 0.8]), (4, 1))
    slopes = np.full(len(VERIFY_KNOTS) - 1, 1e-6)
    costs = LinearCosts(slopes, 8e-3, 4, 0.0, 3e-3, 2e-3, 2e-3, 0.0)
    problem = Problem(np.zeros((4, 2)), found, costs, np.zeros(4))
    lengths, padded, _ = planned(problem, graph_lengths=np.array([0, 2]))
    assert padded == 2
    assert lengths.tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert plan_seconds(costs, lengths, 4, 2) == pytest.approx(8e-3 + 11 * 1e-6), "the first token is in the constant"


def test_what_a_place_in_the_pass_is_worth_decides_between_few_sure_tokens_and_many_doubtful_ones() -> None:
    problem = Problem(np.array([[0.9, 0.8, 0.0, 0.0]]), np.array([[0.6, 0.5, 0.45, 0.4]]), None, np.zeros(1))  # type: ignore[arg-type]
    offered = np.zeros((2, 4))
    choose_sources(problem.offers, problem.survival, 0.0, 0.0, np.zeros(2), offered)
    assert not offered[0].any(), "where places are free, the longer draft gains more"
    choose_sources(problem.offers, problem.survival, 0.3, 0.0, np.zeros(2), offered)
    assert not offered[1].any()
    choose_sources(problem.offers, problem.survival, 0.3, 0.3, np.zeros(2), offered)
    assert not offered[0].any(), "the drafter's rows have their own price"
    choose_sources(problem.offers, problem.survival, 0.3, 0.0, np.array([0.6, 0.0]), offered)
    assert not offered[0].any(), "and so has its KV lag"


def test_offers_are_those_of_the_drafter_then_what_was_found() -> None:
    offers = Offers(*list_offers(np.array([3, 0, 2]), np.array([0, 5, 4]), np.array([0, 3, 1])))
    assert offers.request.tolist() == [0, 1, 2, 1, 2]
    assert offers.other.tolist() == [-1, 3, 4, 1, 2]
    assert offers.limits.tolist() == [3, 0, 2, 5, 4]
    assert offers.buckets.tolist() == [3, 1]
    each, sources = by_request(offers, np.array([3, 0, 0, 0, 4]))
    assert each.tolist() == [3, 0, 4]
    assert sources.tolist() == [Source.DRAFTER, Source.DRAFTER, Source.LOOKUP]
