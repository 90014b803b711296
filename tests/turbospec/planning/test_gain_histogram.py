"""The fast planner against the exact one."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec.planning.steps import gain_of
from turbospec.interface import FloatArray, IntArray
from turbospec.models.latency import VERIFY_KNOTS
from turbospec.planning.exact import DraftPlan, StepCosts, plan_draft_lengths
from turbospec.planning.gain_histogram import (
    BINS,
    LONGEST_GRAPH,
    NO_LIMIT,
    HistogramPlan,
    LinearCosts,
    best_padded,
    best_plan,
    count_gains,
    draft_lengths,
    graph_bits,
    no_draft_seconds,
    passes_run,
    plan_seconds,
    spread_fixed_costs,
    verify_seconds,
)
from turbospec.planning.objective import slope_at


class Problem(NamedTuple):
    """A step."""

    gains: FloatArray
    """(n, K)"""
    costs: LinearCosts
    exact: StepCosts
    """The same costs."""
    price: float

    @property
    def no_draft_value(self) -> float:
        return -self.price * float(self.exact.verify[0])

    def value(self, lengths: IntArray, padded: int = 0) -> float:
        """What a plan is worth, tokens."""
        return gain_of(lengths, self.gains) - self.price * self.exact.seconds(lengths, padded)


def exactly(costs: LinearCosts, tokens: int, graph_lengths: tuple[int, ...] = ()) -> StepCosts:
    """The costs of a step as the exact planner takes them, for up to so many draft tokens."""
    curve = [costs.floor + verify_seconds(costs, costs.base_tokens + m) for m in range(tokens + 1)]
    exact = StepCosts(np.array(curve), costs.draft_start, costs.draft_pass, costs.draft_token, costs.piecewise)
    exact.verify[0] += costs.no_draft_piecewise
    exact.graph_lengths, exact.pass_graphs = graph_lengths, costs.pass_graphs
    return exact


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any survival, ties included; verify curves of any slopes, with the knots anywhere; any way of drafting."""
    n, depth = draw(st.integers(1, 40)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    least, decimals = draw(st.sampled_from([0.0, 0.5, 0.9])), draw(st.sampled_from([1, 2, 9]))
    gains = np.cumprod(rng.uniform(least, 1.0, (n, depth)).round(decimals), axis=1)
    gains *= np.arange(depth) < rng.integers(0, depth + 1, (n, 1))
    slopes = rng.exponential(1e-4, len(VERIFY_KNOTS) - 1) * (rng.random(len(VERIFY_KNOTS) - 1) < 0.7)
    base = draw(st.sampled_from([1, n, 60, 1020]))
    graphs = draw(st.sampled_from(["none", "some", "not without drafts"]))
    piecewise = 0.0 if graphs == "none" else float(rng.uniform(0.0, 5e-3))
    each = float(rng.uniform(0.0, 2e-3))
    # The first pass runs anyway in some engines.
    start = -each if draw(st.booleans()) else float(rng.uniform(0.0, 1e-3))
    costs = LinearCosts(
        slopes,
        0.008,
        base,
        piecewise if graphs == "not without drafts" else 0.0,
        piecewise,
        start,
        each,
        float(rng.uniform(0.0, 1e-4)) * draw(st.sampled_from([0, 1])),
        draw(st.sampled_from([NO_LIMIT, base, base + 3, 64])),
        float(rng.uniform(0.0, 5e-3)),
        draw(st.sampled_from([0, 0, graph_bits((0, 1, 2, 3, 5, 8)), graph_bits((0, 1, 4)), graph_bits((0, 1, 8))])),
    )
    price = draw(st.floats(1.0, 4.0)) * n / no_draft_seconds(costs)
    return Problem(gains, costs, exactly(costs, n * depth), price)


@pytest.mark.parametrize(
    ("lengths", "passes"),
    [
        ((), [0, 1, 2, 3, 4, 5, 6]),
        ((0, 1), [0, 1, 2, 3, 4, 5, 6]),
        ((0, 1, 4), [0, 1, 4, 4, 4, 5, 6]),
        ((0, 1, 2, 3, 5, 8, 100), [0, 1, 2, 3, 5, 5, 8]),
        ((0, 1, LONGEST_GRAPH), [0, 1, *[LONGEST_GRAPH] * 5]),
    ],
)
def test_passes_are_those_of_the_next_graph(lengths: tuple[int, ...], passes: list[int]) -> None:
    graphs = graph_bits(lengths)
    assert [passes_run(length, graphs) for length in range(7)] == passes
    assert [passes_run(length, graphs) for length in (LONGEST_GRAPH + 1, 100)] == [LONGEST_GRAPH + 1, 100]


def histogram(gains: FloatArray) -> tuple[IntArray, FloatArray]:
    depth = gains.shape[1]
    counts, sums = np.full((depth + 1, BINS), -7), np.full((depth + 1, BINS), np.nan)
    count_gains(gains, len(gains), counts, sums)
    return counts, sums


def planned(problem: Problem, max_seconds: float = math.inf) -> tuple[float, HistogramPlan, IntArray]:
    """The planner's value, its plan and the draft lengths."""
    gains, lengths = problem.gains, np.full(len(problem.gains), -1)
    value, plan = best_plan(*histogram(gains), gains.shape[1], problem.costs, problem.price, 0.0, max_seconds)
    plan = HistogramPlan(*plan)
    draft_lengths(gains, plan, len(gains), lengths)
    return value, plan, lengths


def bins(gains: FloatArray) -> IntArray:
    return np.minimum((gains * BINS).astype(np.int64), BINS - 1)


def of_bin(gains: FloatArray, depth: int, place: int) -> int:
    """Tokens of a bin within a depth."""
    return int((bins(gains[:, :depth]) == place).sum()) if place else 0


def bound(gains: FloatArray, best: IntArray) -> float:
    """Most tokens by which the planner's estimate of its plan may be below the value of this best plan.

    Within a bin of c tokens, m of them gain at most m·(c − m) / c · 1/64 more than m of the mean, so c / 256 at most; a
    plan ends within one bin. Tokens that gain less than 1/64 are not drafted.
    """
    chosen = np.arange(gains.shape[1]) < best[:, None]
    places = bins(gains)
    ignored = int((chosen & (places == 0)).sum())
    drafted = places[chosen & (places > 0)]
    last = of_bin(gains, int(best.max()), int(drafted.min())) if len(drafted) else 0
    return ignored / BINS + last / (4 * BINS) + 1e-9


def realised(plan: HistogramPlan, gains: FloatArray) -> float:
    """Most tokens by which the planner's estimate of its plan is wrong, for the same reason."""
    return of_bin(gains, plan.depth, plan.last_bin) / (4 * BINS) + 1e-9


@settings(max_examples=1000, deadline=None)
@given(problems())
def test_a_plan_is_worth_as_much_as_the_best_but_for_the_width_of_a_bin(problem: Problem) -> None:
    value, plan, lengths = planned(problem)
    best = plan_draft_lengths(problem.gains, problem.exact, problem.price)
    short = bound(problem.gains, best.draft_lengths)
    assert best.value(problem.price) - short <= value <= best.value(problem.price) + 1e-9
    own = problem.value(lengths)
    assert own == pytest.approx(value, abs=realised(plan, problem.gains))
    assert own >= best.value(problem.price) - short - realised(plan, problem.gains)
    assert own >= problem.no_draft_value - realised(plan, problem.gains)


@settings(max_examples=300, deadline=None)
@given(problems(), st.floats(0.006, 0.03))
def test_lengths_are_those_of_the_plan(problem: Problem, max_seconds: float) -> None:
    for limit in (math.inf, max_seconds):
        _, plan, lengths = planned(problem, limit)
        assert (lengths >= 0).all()
        assert (lengths <= np.count_nonzero(problem.gains, axis=1)).all()
        assert lengths.max() <= plan.depth
        places = bins(problem.gains[:, : plan.depth])
        in_last = (places == plan.last_bin).sum() if plan.depth else 0
        above = (places > plan.last_bin).sum() if plan.depth else 0
        assert plan.of_last_bin <= in_last
        assert lengths.sum() == above + plan.of_last_bin
        chosen = places[np.arange(plan.depth) < lengths[:, None]]
        assert (chosen >= plan.last_bin).all()
        # The longest draft may be shorter than the plan's depth, never longer.
        assert problem.exact.seconds(lengths) <= plan.seconds + 1e-12
        assert plan.seconds <= max(limit, no_draft_seconds(problem.costs)) + 1e-12
        assert plan_seconds(problem.costs, lengths, len(lengths), 0) == pytest.approx(
            problem.exact.seconds(lengths), rel=1e-12
        )


def best_rate(problem: Problem, base_tokens: float) -> tuple[float, DraftPlan]:
    """Largest (base tokens + gain) / seconds, found by the exact planner at rising prices; and its plan."""
    rate = base_tokens / float(problem.exact.verify[0])
    while True:
        plan = plan_draft_lengths(problem.gains, problem.exact, rate)
        reached = (base_tokens + plan.gain) / plan.seconds
        if reached <= rate * (1 + 1e-12):
            return rate, plan
        rate = reached


@settings(max_examples=500, deadline=None)
@given(problems(), st.booleans())
def test_one_scan_finds_the_best_rate(problem: Problem, none_emits: bool) -> None:
    base = 0.0 if none_emits else float(len(problem.gains))
    gains = problem.gains
    rate, plan = best_plan(*histogram(gains), gains.shape[1], problem.costs, -1.0, base, math.inf)
    plan = HistogramPlan(*plan)
    best, best_lengths = best_rate(problem, base)
    assert rate == pytest.approx((base + plan.gain) / plan.seconds)
    assert rate <= best * (1 + 1e-9)
    assert rate * best_lengths.seconds >= best * best_lengths.seconds - bound(gains, best_lengths.draft_lengths)


@settings(max_examples=300, deadline=None)
@given(problems(), st.sets(st.integers(0, 8)), st.sampled_from([math.inf, 0.012, 0.02]), st.booleans())
def test_padded_plans_are_compared_one_by_one(
    problem: Problem, lengths: set[int], max_seconds: float, rate: bool
) -> None:
    gains, graph_lengths = problem.gains, np.array(sorted(lengths), np.int64)
    n, price, base = len(gains), -1.0 if rate else problem.price, float(len(gains)) if rate else 0.0
    fixed = 1e-3
    exact = exactly(problem.costs, n * 8)
    values: dict[int, float] = {}
    for length in lengths - {0}:
        drafted = np.minimum(np.count_nonzero(gains, axis=1), length)
        if not drafted.any():
            continue
        seconds = exact.seconds(drafted, length) + fixed
        gain = base + gain_of(drafted, gains)
        if seconds <= max_seconds:
            values[length] = gain / seconds if rate else gain - price * seconds
    value, length = best_padded(
        gains.sum(axis=0),
        np.count_nonzero(gains, axis=0),
        n,
        problem.costs,
        price,
        base,
        max_seconds,
        fixed,
        graph_lengths,
    )
    if gains.any():
        assert value == pytest.approx(max(values.values(), default=-math.inf))
        if values:
            assert values[length] == pytest.approx(value)


def test_the_histogram_counts_what_may_be_drafted() -> None:
    counts, sums = histogram(np.array([[1.0, 0.5, 0.01], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert not counts[0].any()
    assert counts[1].nonzero()[0].tolist() == [BINS // 2, BINS - 1], "a sure token is in the last bin"
    assert counts.sum() == 3, "a token that gains less than a bin is not drafted"
    assert sums.sum(axis=1).tolist() == [0.0, 1.5, 0.5, 0.0]


@settings(max_examples=300, deadline=None)
@given(problems(), st.floats(0.0, 5e-3))
def test_fixed_costs_are_spread_over_the_first_tokens(problem: Problem, each: float) -> None:
    gains, depth = problem.gains, problem.gains.shape[1]
    fixed = np.random.default_rng(0).exponential(1.0, len(gains)) * problem.price * each
    net = np.full_like(gains, np.nan)
    spread_fixed_costs(gains, fixed, net)
    assert (np.diff(net, axis=1) <= 1e-12).all()
    assert (net <= gains.cumsum(axis=1) / np.arange(1, depth + 1) + 1e-12).all(), "never above the mean gain"
    covered = gains.sum(axis=1) > fixed
    assert (net[~covered & (fixed > 0.0)] == 0.0).all()
    assert net[covered].sum(axis=1) == pytest.approx((gains.sum(axis=1) - fixed)[covered])
    # With the t tokens that they are spread over, no other number of tokens has a better mean.
    means = ((gains.cumsum(axis=1) - fixed[:, None]) / np.arange(1, depth + 1)).max(axis=1)
    assert net[covered, 0] == pytest.approx(means[covered])


@pytest.mark.parametrize("n", [1, 30, 1000])
def test_a_plan_ends_at_the_knot_where_tokens_become_dear(n: int) -> None:
    slopes = np.where(VERIFY_KNOTS[:-1] < 1024, 1e-6, 1e-3)
    costs = LinearCosts(slopes, 0.01, 1000, 0.0, 0.0, 0.0, 1e-6, 0.0)
    gains = np.full((n, 5), 0.5)
    lengths = planned(Problem(gains, costs, exactly(costs, 5 * n), 1000.0))[2]
    assert lengths.sum() == min(5 * n, 24)


def test_the_slope_of_a_pass_is_the_time_of_one_more_token() -> None:
    slopes = np.random.default_rng(0).uniform(1e-5, 1e-4, len(VERIFY_KNOTS) - 1)
    for tokens in [*range(1, 70), 127, 128, 129, 8191, 8192, 10_000]:
        costs = LinearCosts(slopes, 8e-3, tokens, 0.0, 0.0, 0.0, 1e-3, 0.0)
        more = verify_seconds(costs, tokens + 1) - verify_seconds(costs, tokens)
        assert slope_at(costs) == pytest.approx(more), tokens
