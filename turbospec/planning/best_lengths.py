"""The best draft lengths of a step, for each offer: the plan of the gain histogram, given to the requests.

Fixed costs of drafts (catching up their drafter KV lag) make the plan a knapsack problem; it is solved approximately.
The tests state the loss against the exact planner.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.planning.gain_histogram import (
    BINS,
    LinearCosts,
    best_padded,
    best_plan,
    count_gains,
    draft_lengths,
    drafter_work,
    no_draft_seconds,
    passes_run,
    plan_seconds,
    spread_fixed_costs,
)
from turbospec.planning.objective import expected_gain, slope_at, sum_of_drafts
from turbospec.planning.offers import Offers, choose_sources, offer_lookups
from turbospec.runtime.kernels import compiled, inlined


class Gains(NamedTuple):
    """What each draft token of a step gains, with scratch space for planning."""

    offers: Offers
    survival: FloatArray
    """(offers, depth) w · S[o,j]; 0 past a limit."""
    offered: FloatArray
    """(offers, depth) the same, 0 for the offers that are not considered; `survival` itself with one source."""
    net: FloatArray
    """(offers, depth) scratch space."""
    counts: IntArray
    """(more than depth, BINS) the histogram; overwritten by planning."""
    sums: FloatArray
    """(more than depth, BINS) the histogram; overwritten by planning."""
    column_gains: FloatArray
    """(depth,) Σ_o of what is offered, survivals below 1 / BINS left out; empty without graphs."""
    drafting: IntArray
    """(depth,) requests for which the drafter can draft so many tokens; empty without graphs."""
    graph_lengths: IntArray
    """As in a view."""


@inlined
def uncounted_gains(
    offers: Offers,
    survival: FloatArray,
    offered: FloatArray,
    net: FloatArray,
    counts: IntArray,
    sums: FloatArray,
    graph_lengths: IntArray,
) -> Gains:
    """The gains of a step; the arguments are as in `Gains`. `count` or `consider` fills the histogram."""
    kinds = survival.shape[1] if len(graph_lengths) else 0
    columns, drafting = np.zeros(kinds), np.zeros(kinds, np.int64)
    return Gains(offers, survival, offered, net, counts, sums, columns, drafting, graph_lengths)


@inlined
def count(gains: Gains) -> None:
    """Fill the histogram, and the columns where there are graphs, with what is offered."""
    offers, offered = gains.offers, gains.offered
    n, (_, depth) = offers.requests, offered.shape
    count_gains(offered, n, gains.counts, gains.sums)
    if not len(gains.graph_lengths):
        return
    gains.drafting[:] = 0
    gains.column_gains[:] = 0.0
    for j in range(depth):
        if not gains.counts[j + 1].any():
            break
        gains.column_gains[j] = gains.sums[j + 1].sum()
    for j in range(depth):
        for offer in range(n, len(offered)):
            if offered[offer, j] * BINS >= 1.0:
                gains.column_gains[j] += offered[offer, j]
    for i in range(n):
        if offered[i, 0] > 0.0:
            for j in range(offers.limits[i]):
                gains.drafting[j] += 1


@compiled
def consider(gains: Gains, costs: LinearCosts, price: float, least_gain: float, fixed_seconds: FloatArray) -> None:
    """Choose the source of each request, and count.

    Args:
        gains: of the step.
        costs: of the step.
        price: λ, tokens/s.
        least_gain: a verify token is worth so much at least, also where it adds less time to the pass; in tokens.
        fixed_seconds: (offers,) as for `best_lengths`.
    """
    if len(gains.survival) > gains.offers.requests:
        verify_token = max(least_gain, price * slope_at(costs))
        drafter_token, fixed = price * costs.draft_token, price * fixed_seconds
        choose_sources(gains.offers, gains.survival, verify_token, drafter_token, fixed, gains.offered)
    count(gains)


@compiled
def _count_lookups(gains: Gains) -> None:
    """`count` for the look-up's offers alone."""
    offer_lookups(gains.offers, gains.survival, gains.offered)
    count(gains)


@inlined
def _best_rate(gains: Gains, costs: LinearCosts, base_tokens: float) -> tuple[float, float]:
    n, depth = gains.offers.requests, gains.survival.shape[1]
    rate, plan = best_plan(gains.counts, gains.sums, depth, costs, -1.0, base_tokens, math.inf)
    if len(gains.graph_lengths):
        padded, _ = best_padded(
            gains.column_gains, gains.drafting, n, costs, -1.0, base_tokens, math.inf, 0.0, gains.graph_lengths
        )
        rate = max(rate, padded)
    least = 0.0
    if plan.of_last_bin:
        least = plan.last_bin / BINS
    return rate, least


@inlined
def best_rate(gains: Gains, costs: LinearCosts, base_tokens: float, fixed_seconds: FloatArray) -> tuple[float, float]:
    """Largest (base + gain) / seconds of a step, in tokens/s, and the smallest gain in the best plan without padding.

    It counts the gains. With two sources it chooses those of the offers, first by the price that the look-up alone
    leads to; at another price than this rate they are to be chosen again (`consider`). The smallest gain is then that
    of the plan of both sources, also where the look-up alone has the larger rate.
    """
    if len(gains.survival) == gains.offers.requests:
        count(gains)
        return _best_rate(gains, costs, base_tokens)
    _count_lookups(gains)
    rate, least = _best_rate(gains, costs, base_tokens)
    consider(gains, costs, rate, least, fixed_seconds)
    both, least = _best_rate(gains, costs, base_tokens)
    return max(rate, both), least


@compiled
def best_lengths(
    gains: Gains, costs: LinearCosts, price: float, fixed_seconds: FloatArray, max_seconds: float, lengths: IntArray
) -> int:
    """Fill (offers,) `lengths` with those of the largest gain − λ · (seconds + fixed seconds of the drafts).

    Args:
        gains: of the step, counted.
        costs: of the step.
        price: λ, tokens/s.
        fixed_seconds: (offers,) seconds that a draft costs beside its tokens.
        max_seconds: plans that take longer are not chosen; fixed costs count in padded plans only.
        lengths: to be filled.

    Returns:
        The length that drafts are padded to; 0 for none.
    """
    padded, n = _best_of_offered(gains, costs, price, fixed_seconds, max_seconds, lengths), gains.offers.requests
    if len(lengths) == n or not gains.offered[:n, 0].any():
        return padded
    # Without the drafter its passes are saved for all requests.
    value = expected_gain(gains.survival, lengths) - price * sum_of_drafts(fixed_seconds, lengths)
    value -= price * plan_seconds(costs, lengths, n, padded)
    alone = np.empty_like(lengths)
    _count_lookups(gains)
    padded_alone = _best_of_offered(gains, costs, price, fixed_seconds, max_seconds, alone)
    if expected_gain(gains.survival, alone) - price * plan_seconds(costs, alone, n, padded_alone) >= value:
        lengths[:] = alone
        return padded_alone
    return padded


@inlined
def _best_of_offered(
    gains: Gains, costs: LinearCosts, price: float, fixed_seconds: FloatArray, max_seconds: float, lengths: IntArray
) -> int:
    """`best_lengths` of the offers that are considered."""
    offered, (size, depth), n = gains.offered, gains.offered.shape, gains.offers.requests
    total_fixed = 0.0
    for i in range(size):
        if offered[i, 0] > 0.0:
            total_fixed += fixed_seconds[i]
    net = offered
    if total_fixed > 0.0:
        net = gains.net
        spread_fixed_costs(offered, price * fixed_seconds, net)
        count_gains(net, n, gains.counts, gains.sums)
    value, plan = best_plan(gains.counts, gains.sums, depth, costs, price, 0.0, max_seconds)
    if len(gains.graph_lengths):
        padded_value, padded_length = best_padded(
            gains.column_gains, gains.drafting, n, costs, price, 0.0, max_seconds, total_fixed, gains.graph_lengths
        )
        if padded_value > value:
            for i in range(size):
                length = 0
                while length < min(padded_length, depth) and offered[i, length] > 0.0:
                    length += 1
                lengths[i] = length
            return padded_length
    draft_lengths(net, plan, n, lengths)
    if total_fixed > 0.0 and plan.depth:
        _drop_losers(offered, costs, price, fixed_seconds, n, lengths)
    return 0


@compiled
def _drop_losers(
    survival: FloatArray,
    costs: LinearCosts,
    price: float,
    fixed_seconds: FloatArray,
    requests: int,
    lengths: IntArray,
) -> None:
    """Leave out the drafts whose gain does not cover their fixed cost; a plan may have cut them short."""
    total = lengths.sum()
    depth = drafter_work(lengths, requests)[1]
    if depth == 0:
        return
    with_drafts = plan_seconds(costs, lengths, requests, 0) - costs.draft_start - costs.piecewise
    with_drafts -= costs.draft_pass * passes_run(depth, costs.pass_graphs)
    each = (with_drafts - no_draft_seconds(costs) + costs.no_draft_piecewise) / total
    for i in range(requests):
        if lengths[i] and fixed_seconds[i] > 0.0:
            gain = 0.0
            for j in range(lengths[i]):
                gain += survival[i, j]
            if gain < price * (fixed_seconds[i] + each * lengths[i]):
                lengths[i] = 0


@compiled
def shorten(
    lengths: IntArray, requests: int, padded: int, costs: LinearCosts, lag_seconds: FloatArray, longest: float
) -> int:
    """Leave out the drafts with most to catch up, until the step is short enough; returns the padded length."""
    while lengths.any():
        seconds, last = plan_seconds(costs, lengths, requests, padded), -1
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
