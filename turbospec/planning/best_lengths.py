"""The best draft lengths of a step, for each request: the plan of the gain histogram, given to the requests.

Fixed costs of requests (catching up their drafter KV lag) make the plan a knapsack problem; it is solved approximately.
The tests state the loss against the exact planner.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.planning.gain_histogram import (
    LinearCosts,
    best_padded,
    best_plan,
    count_gains,
    draft_lengths,
    no_draft_seconds,
    plan_seconds,
    spread_fixed_costs,
)
from turbospec.runtime.kernels import compiled


class Gains(NamedTuple):
    """What each draft token of a step gains, with scratch space for planning."""

    survival: FloatArray
    """(n, depth) S[i,j]; 0 past a limit."""
    net: FloatArray
    """(n, depth) scratch space."""
    counts: IntArray
    """(at least depth, BINS) the histogram; overwritten by planning."""
    sums: FloatArray
    """(at least depth, BINS) the histogram; overwritten by planning."""
    column_gains: FloatArray
    """(depth,) Σ_i S[i,j], survivals below 1 / BINS left out; empty without graphs."""
    drafting: IntArray
    """(depth,) requests that can draft so many tokens; empty without graphs."""
    graph_lengths: IntArray
    """As in a view."""


@compiled
def counted(
    survival: FloatArray, net: FloatArray, counts: IntArray, sums: FloatArray, limits: IntArray, graph_lengths: IntArray
) -> Gains:
    """The gains of a step; `limits` are its (n,) draft limits, the other arguments as in `Gains`."""
    depth = survival.shape[1]
    count_gains(survival, depth, counts, sums)
    kinds = depth if len(graph_lengths) else 0
    column_gains, drafting = np.zeros(kinds), np.zeros(kinds, np.int64)
    for j in range(kinds):
        column_gains[j] = sums[j].sum()
    if kinds:
        for i in range(len(limits)):
            for j in range(limits[i]):
                drafting[j] += 1
    return Gains(survival, net, counts, sums, column_gains, drafting, graph_lengths)


@compiled
def best_rate(gains: Gains, costs: LinearCosts, base_tokens: float) -> float:
    """Largest (base + gain) / seconds of a step, in tokens/s; to be called before `best_lengths`."""
    n, depth = gains.survival.shape
    rate, _ = best_plan(gains.counts, gains.sums, depth, costs, -1.0, base_tokens, math.inf)
    if len(gains.graph_lengths):
        padded, _ = best_padded(
            gains.column_gains, gains.drafting, n, costs, -1.0, base_tokens, math.inf, 0.0, gains.graph_lengths
        )
        rate = max(rate, padded)
    return rate


@compiled
def best_lengths(
    gains: Gains, costs: LinearCosts, price: float, fixed_seconds: FloatArray, max_seconds: float, lengths: IntArray
) -> int:
    """Fill (n,) `lengths` with those of the largest gain − λ · (seconds + fixed seconds of the requests that draft).

    Args:
        gains: of the step.
        costs: of the step.
        price: λ, tokens/s.
        fixed_seconds: (n,) seconds that a request costs if it drafts at all.
        max_seconds: plans that take longer are not chosen; fixed costs are not counted.
        lengths: to be filled.

    Returns:
        The length that drafts are padded to; 0 for none.
    """
    survival, (n, depth) = gains.survival, gains.survival.shape
    total_fixed = 0.0
    for i in range(n):
        if survival[i, 0] > 0.0:
            total_fixed += fixed_seconds[i]
    net = survival
    if total_fixed > 0.0:
        net = gains.net
        spread_fixed_costs(survival, depth, price * fixed_seconds, net)
        count_gains(net, depth, gains.counts, gains.sums)
    value, plan = best_plan(gains.counts, gains.sums, depth, costs, price, 0.0, max_seconds)
    if len(gains.graph_lengths):
        padded_value, padded = best_padded(
            gains.column_gains, gains.drafting, n, costs, price, 0.0, max_seconds, total_fixed, gains.graph_lengths
        )
        if padded_value > value:
            for i in range(n):
                length = 0
                while length < min(padded.padded_length, depth) and survival[i, length] > 0.0:
                    length += 1
                lengths[i] = length
            return padded.padded_length
    draft_lengths(net, plan, lengths)
    if total_fixed > 0.0 and plan.depth:
        _drop_losers(survival, costs, price, fixed_seconds, lengths)
    return 0


@compiled
def _drop_losers(
    survival: FloatArray, costs: LinearCosts, price: float, fixed_seconds: FloatArray, lengths: IntArray
) -> None:
    """Leave out the requests whose gain does not cover their fixed cost; a plan may have cut their drafts short."""
    total = lengths.sum()
    if total == 0:
        return
    with_drafts = plan_seconds(costs, lengths, 0) - costs.draft_start - costs.piecewise
    with_drafts -= costs.draft_pass * lengths.max()
    each = (with_drafts - no_draft_seconds(costs) + costs.no_draft) / total
    for i in range(len(lengths)):
        if lengths[i] and fixed_seconds[i] > 0.0:
            gain = 0.0
            for j in range(lengths[i]):
                gain += survival[i, j]
            if gain < price * (fixed_seconds[i] + each * lengths[i]):
                lengths[i] = 0


@compiled
def shorten(lengths: IntArray, padded: int, costs: LinearCosts, lag_seconds: FloatArray, longest: float) -> int:
    """Leave out the requests with most to catch up, until the step is short enough; returns the padded length."""
    while lengths.any():
        seconds, last = plan_seconds(costs, lengths, padded), -1
        for i in range(len(lengths)):
            if lengths[i] and lag_seconds[i] > 0.0:
                seconds += lag_seconds[i]
                if last < 0 or lag_seconds[i] > lag_seconds[last]:
                    last = i
        if seconds <= longest:
            break
        if last >= 0:
            lengths[last] = 0
        else:
            lengths[:] = 0
    return padded if lengths.any() else 0
