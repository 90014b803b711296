"""The best draft lengths of a step, from a histogram of what draft tokens gain.

    max over k   Σ_o Σ_{j≤k_o} gain[o,j]  −  λ · (D(d, m) + V(m + l))

An offer o is a draft that could be made for a request: rows 0 to n - 1 are those of the drafter, the rows after them
those of a look-up, which needs no pass. d = max_o k_o and m = Σ_o k_o over the drafter's rows, l = Σ_o k_o over the
others. At most one row of a request has gains: `turbospec.planning.best_lengths` chooses the source.

For a depth d and a number of draft tokens the best tokens are those of the largest gains, of the first d positions for
the drafter (`turbospec.planning.exact` has the argument). Sorting all gains would take longer than all the rest. Here
they are counted in bins, for each position of the drafter, and for all positions of the look-up together. The plans
considered take whole bins from the top, or reach a knot of the verify curve or the largest CUDA graph within one. Their
number is `BINS` · K, whatever n is. Gains up to 1 in one bin differ by less than `1 / BINS`: where this planner and the
exact one disagree about a token, its net gain is smaller than that.

The same scan finds the best token rate of a step, the largest (n + gain) / seconds: no iteration is needed, as the plan
of the best rate is among the plans considered.

A fixed cost c_o of a draft (catching up the drafter KV lag) is spread over its first tokens: the first t tokens gain
(Σ_{j≤t} gain[o,j] − λ·c_o) / t each, for the t at which that is largest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import MIN_STEP_SECONDS, FloatArray, IntArray
from turbospec.models.acceptance import LEVELS
from turbospec.models.latency import VERIFY_KNOTS
from turbospec.runtime.kernels import compiled, inlined

BINS = LEVELS
"""Bins of a gain between 0 and 1. The last one also has the larger gains that weights of tokens lead to; a plan that
takes a part of it takes any of its tokens. Tokens that gain less than one bin are not drafted."""
NO_LIMIT = np.iinfo(np.int64).max
"""Where CUDA graphs have no largest size."""
LONGEST_GRAPH = 62
"""Graphs of drafter passes for longer drafts are not used: the lengths are bits of one integer."""


class LinearCosts(NamedTuple):
    """Seconds of a step by its number of draft tokens and passes; made by `turbospec.planning.objective`."""

    slopes: FloatArray
    """(segments,) seconds per token of the target's pass between two of `VERIFY_KNOTS`."""
    floor: float
    """Seconds without any token."""
    base_tokens: int
    """Tokens of the target's pass without drafts, at least 1."""
    no_draft_piecewise: float
    """Seconds in addition without drafts: where these steps replay no full graph."""
    piecewise: float
    """Seconds in addition with drafts that are not padded to a length that has a graph."""
    draft_start: float
    draft_pass: float
    draft_token: float
    """As in `turbospec.planning.exact.StepCosts`."""
    graph_tokens: int = NO_LIMIT
    """Most tokens of the target's pass that replays CUDA graphs."""
    ungraphed: float = 0.0
    """Seconds of a larger pass in addition."""
    pass_graphs: int = 0
    """Bit d is set where d is one of a view's `drafter_graph_lengths` (`passes_run`)."""


class HistogramPlan(NamedTuple):
    """A plan, before it is known which requests draft its tokens."""

    gain: float
    """Σ of the gains of its tokens."""
    seconds: float
    """Duration of the step, without the fixed costs of drafts."""
    depth: int
    """Longest draft of the drafter; 0 for none."""
    last_bin: int
    """Bin of the smallest gains in the plan."""
    of_last_bin: int
    """Tokens of that bin that are in the plan; 0 for a plan without drafts."""


@compiled
def curve_seconds(slopes: FloatArray, tokens: int) -> float:
    """Seconds that so many tokens add to the target's pass."""
    seconds, segment = 0.0, 0
    while segment < len(slopes) and tokens > VERIFY_KNOTS[segment]:
        seconds += slopes[segment] * (min(float(tokens), VERIFY_KNOTS[segment + 1]) - VERIFY_KNOTS[segment])
        segment += 1
    return seconds


@compiled
def verify_seconds(costs: LinearCosts, tokens: int) -> float:
    """Seconds that so many tokens take in the target's pass, its floor not included."""
    seconds = curve_seconds(costs.slopes, tokens)
    return seconds + costs.ungraphed if tokens > costs.graph_tokens else seconds


@compiled
def segment_of(tokens: int, segments: int) -> int:
    """The segment of the verify curve in which one more token lies."""
    segment = 0
    while segment < segments - 1 and tokens >= VERIFY_KNOTS[segment + 1]:
        segment += 1
    return segment


@compiled
def no_draft_seconds(costs: LinearCosts) -> float:
    """Duration of the step without drafts."""
    return max(costs.floor + costs.no_draft_piecewise + verify_seconds(costs, costs.base_tokens), MIN_STEP_SECONDS)


def graph_bits(lengths: tuple[int, ...]) -> int:
    """`LinearCosts.pass_graphs` of a view's `drafter_graph_lengths`."""
    return sum(1 << length for length in {*lengths} if length <= LONGEST_GRAPH)


@inlined
def passes_run(length: int, pass_graphs: int) -> int:
    """Passes for a longest draft of so many tokens: those of the next length with a graph, if there is one."""
    if length > LONGEST_GRAPH or pass_graphs >> length == 0:
        return length
    while not pass_graphs >> length & 1:
        length += 1
    return length


@inlined
def graph_of_passes(depth: int, padded_length: int, pass_graphs: int) -> int:
    """The length whose graph of passes the drafter is to replay, for a longest draft of `depth` tokens; 0 for none."""
    if depth == 0:
        return 0
    passes = passes_run(max(depth, padded_length), pass_graphs)
    return passes if passes <= LONGEST_GRAPH and pass_graphs >> passes & 1 else 0


@compiled
def drafter_work(lengths: IntArray, requests: int) -> tuple[int, int]:
    """Tokens that the drafter drafts, and its longest draft.

    Args:
        lengths: (offers,) draft lengths.
        requests: n; the first n offers are the drafter's.
    """
    tokens, depth = 0, 0
    for i in range(requests):
        tokens += lengths[i]
        depth = max(depth, lengths[i])
    return tokens, depth


@compiled
def plan_seconds(costs: LinearCosts, lengths: IntArray, requests: int, padded_length: int) -> float:
    """Duration of a step of n requests with these (offers,) draft lengths, fixed costs of drafts not included."""
    drafted, depth = drafter_work(lengths, requests)
    tokens = drafted
    for i in range(requests, len(lengths)):
        tokens += lengths[i]
    if tokens == 0:
        return no_draft_seconds(costs)
    seconds = costs.floor
    if drafted:
        seconds += costs.draft_start + costs.draft_token * drafted
        seconds += costs.draft_pass * passes_run(max(padded_length, depth), costs.pass_graphs)
    if padded_length:
        return seconds + verify_seconds(costs, costs.base_tokens + padded_length * requests)
    return seconds + costs.piecewise + verify_seconds(costs, costs.base_tokens + tokens)


@inlined
def count_gains(gains: FloatArray, requests: int, counts: IntArray, sums: FloatArray) -> None:
    """Fill a histogram.

    Args:
        gains: (offers, K) not increasing along a row.
        requests: n; the first n offers are the drafter's.
        counts: (K + 1, BINS) tokens by bin; row 0 has those of the look-up, row d the d-th ones of the drafter.
        sums: (K + 1, BINS) their summed gains. Rows after the drafter's first empty one are not cleared, and must not
            be read: gains do not increase from one position to the next.
    """
    depth, cleared = gains.shape[1], 1
    counts[:2], sums[:2] = 0, 0.0
    for i in range(len(gains)):
        for j in range(depth):
            place = int(gains[i, j] * BINS)
            if place <= 0:
                break
            place = min(place, BINS - 1)
            row = j + 1 if i < requests else 0
            if row == cleared and row < depth:
                cleared += 1
                for empty in range(BINS):
                    counts[cleared, empty], sums[cleared, empty] = 0, 0.0
            counts[row, place] += 1
            sums[row, place] += gains[i, j]


@compiled
def best_plan(
    counts: IntArray,
    sums: FloatArray,
    depth: int,
    costs: LinearCosts,
    price: float,
    base_tokens: float,
    max_seconds: float,
) -> tuple[float, HistogramPlan]:
    """The plan of unequal lengths with the largest gain − λ · seconds, or the largest token rate.

    Args:
        counts, sums: the histogram.
        depth: positions of the drafter in it.
        costs: of the step.
        price: λ in tokens/s; negative for the largest token rate.
        base_tokens: tokens that the step emits without drafts.
        max_seconds: plans that take longer are not chosen, except the plan without drafts.

    Returns:
        The plan's value (tokens or tokens/s), and the plan.
    """
    seconds = no_draft_seconds(costs)
    best = HistogramPlan(0.0, seconds, 0, 0, 0)
    value = base_tokens / seconds if price < 0.0 else -price * seconds
    taken, drafted, gained = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64), np.zeros(BINS)
    top, highest, passes = BINS - 1, 0, 0
    last = len(costs.slopes) - 1
    first_segment = segment_of(costs.base_tokens, last + 1)
    before_first = curve_seconds(costs.slopes, int(VERIFY_KNOTS[first_segment]))
    for d in range(depth + 1):
        if d == 1:
            top = BINS - 1
        while top > 0 and counts[d, top] == 0:
            top -= 1  # gains do not increase along a row
        if top == 0:
            if d == 0:
                continue
            break  # later rows are not filled
        highest = max(highest, top)
        added = 0.0
        for place in range(1, top + 1):
            taken[place] += counts[d, place]
            gained[place] += sums[d, place]
            added += sums[d, place]
            if d:
                drafted[place] += counts[d, place]
        # The sums do not increase from one position to the next either: where this one does not pay for its pass, no
        # later one does. The positions of one graph share its passes, at least one for each of them: the search may end
        # at the first of them, and not later. The largest rate rises only by tokens that arrive at a higher rate than
        # the best so far.
        before_passes, passes = passes, passes_run(d, costs.pass_graphs)
        if d > 1 and passes > before_passes and added <= (value if price < 0.0 else price) * costs.draft_pass:
            break
        fixed = costs.floor + costs.piecewise
        if d:
            fixed += costs.draft_start + costs.draft_pass * passes
        tokens, of_drafter, gain, segment, before = 0, 0.0, 0.0, first_segment, before_first
        for place in range(highest, 0, -1):
            left = taken[place]
            if left == 0:
                continue
            each, share = gained[place] / left, drafted[place] / left
            while left > 0:
                # Up to the next knot, or to the largest graph, and on from there.
                total = costs.base_tokens + tokens
                room = left if segment == last else min(left, int(VERIFY_KNOTS[segment + 1]) - total)
                if total < costs.graph_tokens:
                    room = min(room, costs.graph_tokens - total)
                if room <= 0:
                    before += costs.slopes[segment] * (VERIFY_KNOTS[segment + 1] - VERIFY_KNOTS[segment])
                    segment += 1
                    continue
                tokens, gain, left = tokens + room, gain + each * room, left - room
                of_drafter += share * room
                seconds = before + costs.slopes[segment] * (costs.base_tokens + tokens - VERIFY_KNOTS[segment])
                seconds += fixed + costs.draft_token * of_drafter
                if costs.base_tokens + tokens > costs.graph_tokens:
                    seconds += costs.ungraphed
                new = (base_tokens + gain) / seconds if price < 0.0 else gain - price * seconds
                if new > value and seconds <= max_seconds:
                    value = new
                    best = HistogramPlan(gain, seconds, d, place, taken[place] - left)
    return value, best


@compiled
def best_padded(
    column_gains: FloatArray,
    drafting: IntArray,
    requests: int,
    costs: LinearCosts,
    price: float,
    base_tokens: float,
    max_seconds: float,
    fixed_seconds: float,
    lengths: IntArray,
) -> tuple[float, int]:
    """Value and length of the best plan in which all drafts are padded to one of `lengths`; -inf where there is none.

    Args:
        column_gains: (K,) summed gains at each position, without any fixed cost.
        drafting: (K,) requests for which the drafter can draft so many tokens.
        requests: n.
        costs, price, base_tokens, max_seconds: as for `best_plan`.
        fixed_seconds: Σ c_o of the drafts that can be made.
        lengths: that have full graphs.
    """
    value, best = -math.inf, 0
    for length in lengths:
        if length == 0:
            continue
        deepest = min(length, len(drafting))
        gain, drafted = column_gains[:deepest].sum(), drafting[:deepest].sum()
        seconds = costs.floor
        if drafted:
            seconds += costs.draft_start + costs.draft_token * drafted
            seconds += costs.draft_pass * passes_run(length, costs.pass_graphs)
        seconds += fixed_seconds + verify_seconds(costs, costs.base_tokens + length * requests)
        new = (base_tokens + gain) / seconds if price < 0.0 else gain - price * seconds
        if new > value and seconds <= max_seconds:
            value, best = new, length
    return value, best


@compiled
def spread_fixed_costs(gains: FloatArray, fixed_tokens: FloatArray, net: FloatArray) -> None:
    """Fill (offers, K) `net`: the gains less the drafts' fixed costs, which are spread over their first tokens.

    Args:
        gains: (offers, K) not increasing along a row.
        fixed_tokens: (offers,) λ · c_o.
        net: not increasing along a row.
    """
    depth = gains.shape[1]
    for i in range(len(gains)):
        total, most, tokens = -fixed_tokens[i], 0.0, 0
        if fixed_tokens[i] > 0.0:
            for j in range(depth):
                total += gains[i, j]
                if total / (j + 1) <= most and most > 0.0:
                    break
                if total > 0.0:
                    most, tokens = total / (j + 1), j + 1
            if tokens == 0:
                net[i, :depth] = 0.0
                continue
        for j in range(depth):
            net[i, j] = most if j < tokens else gains[i, j]


@compiled
def draft_lengths(net: FloatArray, plan: HistogramPlan, requests: int, lengths: IntArray) -> None:
    """Fill (offers,) `lengths` with those of a plan that is not padded; the first n offers are the drafter's."""
    lengths[:] = 0
    if plan.of_last_bin == 0:
        return
    width = net.shape[1]
    for i in range(len(net)):
        most = plan.depth if i < requests else width
        while lengths[i] < most and min(int(net[i, lengths[i]] * BINS), BINS - 1) > plan.last_bin:
            lengths[i] += 1
    # Position by position, so that the tokens of a draft form a prefix.
    left = plan.of_last_bin
    for j in range(width):
        if left == 0:
            break
        for i in range(len(net)):
            reached = left and lengths[i] == j and (i >= requests or j < plan.depth)
            if reached and min(int(net[i, j] * BINS), BINS - 1) == plan.last_bin:
                lengths[i] += 1
                left -= 1
