"""What it is worth to start drafting a request when a gate will end the draft at the right moment.

A plan made before drafting knows how often a position is accepted, not how sure the drafter will be this time. With a
gate it need not know: the draft goes on while confidence is high and ends when it is not, which is worth more than
any fixed length. The value of starting is that of optimal stopping,

    W(P) = −c(P) + Σ_b h_b · [ (P·a_b)⁺ + max(0, W(P·a_b)) ],

P the probability that all tokens so far survive, h_b how often a position's confidence falls in bin b, a_b its
acceptance, c the price of one more pass for this request: its row, and its share of the pass among the requests that
still draft, about n·P of them. Solved backwards on a grid of log P.
"""

from __future__ import annotations

import numpy as np

from turbospec.compiled import compiled
from turbospec.types import FloatArray

GRID = 72
GRID_STEP = 0.05
"""Step in -log P: the grid ends at a survival of 0.03."""
LEVELS = 13
"""Requests better or worse than the server's calibration, by odds ratios of powers of 2 around 1."""


@compiled
def stopping_values(
    table: FloatArray,
    histogram: FloatArray,
    pass_price: float,
    row_price: float,
    verify_price: float,
    sharers: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Value of drafting one request under a `SurvivalGate`, for requests of different quality.

    Args:
        table: (bins,) acceptance by bin of confidence.
        histogram: (bins,) how often a next position's confidence falls in each bin; sums to 1.
        pass_price: tokens that a draft pass costs.
        row_price: tokens that a request's row in it costs, its verification included.
        verify_price: tokens that verifying a token costs.
        sharers: requests that share the first pass.

    Returns:
        mean: (LEVELS,) acceptance of the next token, rising; the key by which a request finds itself.
        gain: (LEVELS,) accepted tokens expected.
        cost: (LEVELS,) price of the passes expected, in tokens.
    """
    bins = len(table)
    mean, gain, cost = np.zeros(LEVELS), np.zeros(LEVELS), np.zeros(LEVELS)
    acceptance, stride = np.zeros(bins), np.zeros(bins, np.int64)
    gains, costs = np.zeros(GRID), np.zeros(GRID)
    for level in range(LEVELS):
        ratio = 2.0 ** (level - LEVELS // 2)
        for b in range(bins):
            odds = table[b] / (1.0 - table[b]) * ratio
            acceptance[b] = odds / (1.0 + odds)
            mean[level] += histogram[b] * acceptance[b]
            # At least one step, so that the recursion descends even where the drafter is never wrong.
            stride[b] = max(1, round(-np.log(acceptance[b]) / GRID_STEP))
        for k in range(GRID - 1, -1, -1):
            survival = np.exp(-GRID_STEP * k)
            gains[k] = 0.0
            costs[k] = row_price + pass_price / max(1.0, sharers * survival)
            for b in range(bins):
                kept = survival * acceptance[b]
                if kept <= verify_price:
                    continue
                gains[k] += histogram[b] * kept
                onward = k + stride[b]
                if onward < GRID and gains[onward] > costs[onward]:
                    gains[k] += histogram[b] * gains[onward]
                    costs[k] += histogram[b] * costs[onward]
        gain[level], cost[level] = gains[0], costs[0]
    return mean, gain, cost
