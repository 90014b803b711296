"""The objective's parts: step times by the way of drafting, prompts that join, the price of time, catching up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.interface import FloatArray, IntArray, Phase
from turbospec.models.step_cost import (
    CATCH_UP,
    CONTEXT,
    DRAFT,
    PREFILL,
    PREFILL_TOKENS,
    REQUESTS,
    SIZE,
    TOKENS,
    UNGRAPHED,
)
from turbospec.planning.gain_histogram import no_draft_seconds, plan_seconds
from turbospec.planning.objective import (
    StepShape,
    charge_catch_up,
    drafter_memory,
    expected_costs,
    expected_gain,
    long_run_costs,
    memory_price,
    plan_features,
    prefill_factor,
    rate_without_drafter,
    step_costs,
    sum_of_drafts,
    sum_up,
    waiting_factor,
    with_start,
)

WAYS = [
    # parallel drafter, batch drafter, first pass every step
    (False, False, False),
    (False, True, False),
    (False, True, True),
    (True, False, False),
    (True, True, False),
    (True, True, True),
]


class Case(NamedTuple):
    """A random step, cost weights and a plan."""

    weights: FloatArray
    shape: StepShape
    lag: IntArray
    lengths: IntArray
    padded_length: int


def a_shape(
    n: int = 4, *, prompts: int = 0, way: tuple[bool, bool, bool] = WAYS[0], graphs: int = 0, largest_graph: int = 0
) -> StepShape:
    """n requests that decode at 100 tokens of context and may draft 4."""
    graph_lengths = np.array([[], [0, 4], [4]][graphs], np.int64)
    ones = np.ones(n, np.int64)
    return sum_up(ones * Phase.DECODE, ones, 100 * ones, prompts, *way, graph_lengths, largest_graph, 0)


def random_weights(seed: int) -> FloatArray:
    """Positive, so that no mistake cancels out."""
    return np.random.default_rng(seed).uniform(0.5, 2.0, SIZE) * 1e-4


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, longest = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    parallel, batch, first_pass = draw(st.sampled_from(WAYS))
    phase = rng.integers(0, 3, n)
    phase[0] = Phase.DECODE
    limits = np.where(phase == Phase.PREFILL, 0, rng.integers(0, longest + 1, n))
    context, lag = rng.integers(1, 3000, n), rng.integers(0, 50, n) * (not first_pass)
    graph_lengths = np.array(draw(st.sampled_from([[], [0, 2, 6], [1, 2, 6], [6]])), np.int64)
    prompts = draw(st.sampled_from([0, 1, 500])) if not len(graph_lengths) else 0
    of_drafter = 0 if parallel else draw(st.sampled_from([0, 0b1000111]))
    largest = draw(st.sampled_from([0, 8, 40, 10_000]))
    shape = sum_up(phase, phase, context, prompts, parallel, batch, first_pass, graph_lengths, largest, of_drafter)
    lengths = np.minimum(rng.integers(0, longest + 1, n), limits)
    padded = [0, *(int(length) for length in graph_lengths if length >= lengths.max() and length)]
    return Case(random_weights(int(rng.integers(1000))), shape, lag, lengths, draw(st.sampled_from(padded)))


@settings(max_examples=500, deadline=None)
@given(cases())
def test_what_is_planned_with_is_linear_in_the_weights_that_are_learnt(case: Case) -> None:
    costs = step_costs(case.weights, case.shape, float(case.shape.prefill_tokens))
    seconds = plan_seconds(costs, case.lengths, len(case.lengths), case.padded_length)
    seconds += sum_of_drafts(case.lag * case.weights[CATCH_UP], case.lengths)
    x = np.full(SIZE, np.nan)
    plan_features(x, case.shape, case.lag, case.lengths, case.padded_length)
    assert (x >= 0.0).all()
    assert x @ case.weights == pytest.approx(seconds, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_a_step_without_drafts_does_nothing_for_them(case: Case) -> None:
    x, nothing = np.full(SIZE, np.nan), 0 * case.lengths
    plan_features(x, case.shape, case.lag, nothing, 0)
    costs = step_costs(case.weights, case.shape, float(case.shape.prefill_tokens))
    assert not x[DRAFT:].any()
    assert x @ case.weights == pytest.approx(no_draft_seconds(costs), rel=1e-9)
    assert plan_seconds(costs, nothing, len(nothing), case.padded_length) == no_draft_seconds(costs)


@pytest.mark.parametrize("way", [*WAYS, (False, False, True)])
def test_what_each_way_of_drafting_charges(way: tuple[bool, bool, bool]) -> None:
    weights = random_weights(1)
    costs = step_costs(weights, a_shape(8, way=way), 0.0)
    start, each = weights[DRAFT], weights[DRAFT + 1]
    row, kv = weights[DRAFT + 2], weights[DRAFT + 3]
    whole_pass = each + 8 * row + 800 * kv
    plain = no_draft_seconds(costs)

    def drafting(lengths: list[int]) -> float:
        verify = weights[TOKENS:PREFILL] @ np.clip(8 + sum(lengths) - 2.0 ** np.arange(14), 0.0, 2.0 ** np.arange(14))
        verify -= weights[TOKENS:PREFILL] @ np.clip(8 - 2.0 ** np.arange(14), 0.0, 2.0 ** np.arange(14))
        return float(plan_seconds(costs, np.array(lengths + [0] * (8 - len(lengths))), 8, 0) - plain - verify)

    one, uneven = {
        (False, False, False): (start + each + row + 100 * kv, start + 3 * each + 4 * (row + 100 * kv)),
        (False, False, True): (row + 100 * kv, 2 * each + 4 * (row + 100 * kv)),
        (False, True, False): (start + whole_pass, start + 3 * whole_pass),
        (False, True, True): (0.0, 2 * whole_pass),
        (True, False, False): (start + each + 800 * kv + row, start + each + 800 * kv + 4 * row),
        (True, True, False): (start + whole_pass, start + whole_pass),
        (True, True, True): (0.0, 0.0),
    }[way]
    assert drafting([1]) == pytest.approx(one, abs=1e-12)
    assert drafting([3, 1]) == pytest.approx(uneven, abs=1e-12)


def test_steps_that_replay_no_full_graph_take_longer() -> None:
    weights, lengths = random_weights(2), np.array([4, 4, 4, 4])
    none, some, without = (step_costs(weights, a_shape(graphs=graphs), 0.0) for graphs in (0, 1, 2))
    longer = weights[PREFILL_TOKENS + 1]
    assert no_draft_seconds(some) == no_draft_seconds(none)
    assert no_draft_seconds(without) == pytest.approx(no_draft_seconds(none) + longer)
    for costs in (some, without):
        assert plan_seconds(costs, lengths, len(lengths), 4) == pytest.approx(
            plan_seconds(none, lengths, len(lengths), 0)
        )
        assert plan_seconds(costs, lengths, len(lengths), 0) == pytest.approx(
            plan_seconds(none, lengths, len(lengths), 0) + longer
        )


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 999),
    st.floats(0.0, 1.0),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0, 1, 3]),
    st.booleans(),
)
def test_where_prompts_may_join_costs_are_the_mean_of_both_steps(
    seed: int, share: float, graphs: int, length: int, padded: bool
) -> None:
    """Exactly so at the knots of the verify curve: four requests verify 4, 8 or 16 tokens here."""
    weights, shape = random_weights(seed), a_shape(graphs=graphs)
    # Beside the prompts the curve has a knot too, at 512 tokens.
    alone, joined = step_costs(weights, shape, 0.0), step_costs(weights, shape, 500.0)
    mean, lengths = expected_costs(alone, joined, share), np.full(4, length)
    with_padding = length if padded and graphs else 0
    # A step with prompts is never padded, and has no graph to miss: `PREFILL` has what that takes.
    second = plan_seconds(joined, lengths, 4, 0) - (joined.piecewise if length else joined.no_draft_piecewise)
    expected = (1.0 - share) * plan_seconds(alone, lengths, 4, with_padding) + share * second
    assert plan_seconds(mean, lengths, 4, with_padding) == pytest.approx(expected, rel=1e-9)


def test_what_prompts_take_in_proportion_is_no_part_of_the_long_run() -> None:
    weights = random_weights(6)
    weights[[PREFILL, UNGRAPHED]] = 0.0
    weights[TOKENS:PREFILL] = 1e-6
    without, joined = (step_costs(weights, a_shape(), prompts) for prompts in (0.0, 300.0))
    mean = long_run_costs(without, joined, weights[PREFILL_TOKENS], 0.6)
    assert no_draft_seconds(mean) == pytest.approx(no_draft_seconds(without))


@pytest.mark.parametrize(("share", "counted"), [(0.02, 0.02**2 / 2), (0.5, 0.5 + 0.5 * np.log(0.5)), (1.0, 1.0)])
def test_what_prompts_take_once_in_a_step_counts_as_often_as_several_requests_join(
    share: float, counted: float
) -> None:
    weights = random_weights(7)
    weights[TOKENS:PREFILL], weights[PREFILL], weights[UNGRAPHED] = 1e-6, 3e-3, 5e-3
    shape = a_shape(largest_graph=200)
    without, joined = step_costs(weights, shape, 0.0), step_costs(weights, shape, 10_000.0)
    mean = long_run_costs(without, joined, weights[PREFILL_TOKENS], share)
    once = no_draft_seconds(mean) - no_draft_seconds(without)
    assert once == pytest.approx(counted * (3e-3 + 5e-3), rel=0.03)


@pytest.mark.parametrize("largest", [2, 4, 100, 700])
def test_beside_prompts_a_pass_may_be_too_large_for_graphs(largest: int) -> None:
    weights = random_weights(8)
    weights[TOKENS:PREFILL] = 0.0
    with_graphs, without = (step_costs(weights, a_shape(largest_graph=most), 300.0) for most in (10**9, largest))
    alone, without_prompts = (step_costs(weights, a_shape(largest_graph=most), 0.0) for most in (10**9, largest))
    share = 0.4
    added = no_draft_seconds(expected_costs(without_prompts, without, share))
    added -= no_draft_seconds(expected_costs(alone, with_graphs, share))
    often = share * np.exp(-max(largest - 4, 0) / 300.0) + (1.0 - share) * (largest < 4)
    assert added == pytest.approx(often * weights[UNGRAPHED])


def test_time_before_drafting_is_taken_by_steps_with_drafts_alone() -> None:
    costs, lengths = step_costs(random_weights(4), a_shape(), 0.0), np.array([1, 0, 0, 0])
    later = with_start(costs, 0.25)
    assert no_draft_seconds(later) == no_draft_seconds(costs)
    assert plan_seconds(later, lengths, len(lengths), 0) == pytest.approx(
        plan_seconds(costs, lengths, len(lengths), 0) + 0.25
    )


def test_a_second_is_worth_more_while_first_tokens_wait() -> None:
    shape = a_shape(4)
    assert waiting_factor(shape, 8.0, 0.01, 0, 0.0) == 1.0
    assert waiting_factor(shape, 0.0, 0.01, 3, 0.0) == 1.0
    assert waiting_factor(shape, 8.0, 0.01, 2, 0.0) == pytest.approx(1.0 + 8.0 * 2 / 4)
    # A request that has waited 30 ms: the step of 10 ms is a quarter of its wait.
    assert waiting_factor(shape, 8.0, 0.01, 2, 0.03) == pytest.approx(1.0 + 8.0 * 2 / 4 / 4)


def test_time_is_dearer_the_closer_prefill_is_to_its_limit() -> None:
    assert prefill_factor(0.0, 100, 0.005) == 1.0
    # A utilisation of 0.9 and 100 requests.
    assert prefill_factor(0.81, 100, 0.005) == pytest.approx(1.0 + 0.81 / (100 * 0.1**2))
    assert prefill_factor(0.81, 10, 0.005) > prefill_factor(0.81, 100, 0.005)
    assert prefill_factor(1.0, 100, 0.005) == pytest.approx(1.0 + 1.0 / (100 * 0.005**2))


def test_the_tokens_that_benefit_share_the_cost_of_catching_up() -> None:
    charged = np.full(5, np.nan)
    lag, left = np.array([100, 100, 100, 0, 100]), np.array([64, 1000, 4, 50, 0])
    charge_catch_up(lag, left, np.array([0.5, 0.5, 0.5, 0.5, 0.0]), 1e-3, 64.0, charged)
    assert charged == pytest.approx([0.1 * 1.5 / 64, 0.1 * 1.5 / 64, 0.1 * 1.5 / 4, 0.0, 0.1])
    assert sum_of_drafts(charged, np.array([0, 2, 1, 4, 0])) == pytest.approx(charged[1] + charged[2])


def test_the_gain_is_the_survival_of_the_drafted_tokens() -> None:
    survival = np.array([[0.9, 0.5], [0.8, 0.0]])
    assert expected_gain(survival, np.array([2, 1])) == pytest.approx(2.2)
    assert expected_gain(survival, np.array([0, 5])) == pytest.approx(0.8), "padding gains nothing"


def test_a_shape_sums_up_the_requests() -> None:
    phase = np.array([Phase.PREFILL, Phase.FIRST_DECODE, Phase.DECODE, Phase.DECODE])
    shape = sum_up(
        phase,
        np.array([0, 1, 5, 5]),
        np.array([10, 20, 30, 40]),
        90,
        False,
        True,
        False,
        np.array([0, 3]),
        0,
        0,
    )
    assert (shape.requests, shape.decoding, shape.without_token, shape.first_decode) == (4, 3, 1, 1)
    assert (shape.context_tokens, shape.prefill_tokens, shape.batch_drafter) == (100, 90, True)
    shapes = [a_shape(graphs=kind) for kind in range(3)]
    assert [shape.has_graphs for shape in shapes] == [False, True, True]
    assert [shape.has_no_draft_graph for shape in shapes] == [False, True, False]


@pytest.mark.parametrize("drafting_share", [0.0, 0.3, 1.0])
def test_requests_with_the_drafter_and_more_of_them_without_it_fill_the_same_memory(drafting_share: float) -> None:
    weights, shape = random_weights(4), a_shape(24)
    costs = step_costs(weights, shape, 0.0)
    memory = drafter_memory(weights, shape, costs, 0.5, drafting_share)
    if drafting_share == 1.0:
        assert (memory.waiting, memory.running) == pytest.approx((12.0, 0.0)), "24 have place with the drafter"
    if drafting_share == 0.0:
        assert (memory.waiting, memory.running) == pytest.approx((0.0, 8.0)), "16 would have place with the drafter"
    assert shape.requests + memory.waiting == pytest.approx(1.5 * (shape.requests - memory.running))
    one_more = step_costs(weights, a_shape(25), 0.0)
    longer = no_draft_seconds(one_more) - no_draft_seconds(costs)
    assert memory.request_seconds == pytest.approx(longer), "as one more request makes a step longer"
    assert longer > weights[REQUESTS] + 100 * weights[CONTEXT]


def test_requests_that_the_drafter_keeps_waiting_are_worth_what_they_would_add_to_the_rate() -> None:
    weights, shape = random_weights(4), a_shape(24)
    costs = step_costs(weights, shape, 0.0)
    plain = no_draft_seconds(costs)
    memory = drafter_memory(weights, shape, costs, 0.5, 1.0)
    rate = rate_without_drafter(memory, 24.0, plain)
    assert rate == pytest.approx(36.0 / (plain + 12 * memory.request_seconds))
    price = memory_price(memory.waiting, memory, rate)
    assert 24.0 / (plain - price) == pytest.approx(rate), "less their price, a step without them has the rate"
    assert memory_price(12.0, memory, 1e9) == 0.0, "where a request adds more time than its token is worth, none waits"
