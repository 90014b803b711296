"""What it is worth to start drafting when a gate will end each draft at the right moment.

A plan made before drafting knows how often a position is accepted, not how sure the drafter will be this time. With a
gate it need not know: a draft goes on while confidence is high and ends when it is not, which is worth more than any
fixed length. What a pass at depth d brings a request, less the price of its row, is the expectation

    v(d) = Σ_P m_d(P) · [ Σ_b h_b · (P·a_b − verify)⁺ − row ],     over the P that go on:  P·ā > row + verify

with m_d(P) the probability that the gate lets the request into the pass having drafted tokens that all survive with
probability P, h_b how often a position's confidence falls in bin b, a_b its acceptance, ā their mean. v does not rise
with d, so the passes that pay for themselves, Σ_i v_i(d) > pass, are the first ones. The price of a pass is weighed
against the whole batch: a request that would not pay for a pass by itself still gains by riding along.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.confidence import ConfidenceCalibration
from turbospec.runtime.kernels import compiled

GRID = 40
GRID_STEP = 0.1
"""Step in -log P: the grid ends at a survival of 0.02."""
LEVELS = 13
"""Requests better or worse than the server's calibration, by odds ratios of powers of 2 around 1."""
DEPTH = 16
"""Deeper passes are not looked at: hardly a draft survives to them."""
REFRESH_OBSERVATIONS = (16, 512)
"""Least and most observations for which values are kept; in between a quarter of those they rest on."""
MAX_KEPT = 64
PRICE_STEP = 0.1
"""Prices that differ by less than this part share their values."""


class PassValues(NamedTuple):
    """v(d) for requests of different quality."""

    table: FloatArray
    """(bins,) the calibration that the values rest on."""
    mean: FloatArray
    """(LEVELS,) acceptance of the next token, rising; the key by which a request finds itself."""
    gain: FloatArray
    """(LEVELS, DEPTH) accepted tokens that each pass is expected to bring."""
    net: FloatArray
    """(LEVELS, DEPTH) the same less the price of the row and of its verification."""


class Start(NamedTuple):
    """Whom to start, and what to expect of it."""

    draft_lengths: IntArray
    """(n,) a started request's limit, 0 for one that is not started; all 0 where no pass pays."""
    requests: int
    """Requests started."""
    gain: float
    """Accepted tokens expected."""
    surplus: float
    """The same less everything they cost, in tokens."""


class _Kept(NamedTuple):
    row_price: float
    verify_price: float
    stale_at: int
    """Observations of the calibration after which the values are computed anew."""
    values: PassValues

    def near(self, row_price: float, verify_price: float) -> bool:
        return (
            abs(row_price - self.row_price) <= PRICE_STEP * self.row_price
            and abs(verify_price - self.verify_price) <= PRICE_STEP * self.verify_price
        )


class StoppingValues:
    """Keeps the values of the prices that occur, and computes them anew now and then.

    Args:
        calibration: where acceptance by confidence is learnt.
    """

    def __init__(self, calibration: ConfidenceCalibration) -> None:
        self._calibration = calibration
        self._kept: dict[tuple[int, int], _Kept] = {}
        """By rounded prices."""
        self._last: _Kept | None = None

    def at(self, row_price: float, verify_price: float) -> PassValues:
        """Values for these prices.

        Args:
            row_price: tokens that a request's row in a pass costs.
            verify_price: tokens that verifying a token costs.
        """
        seen = self._calibration.observations
        last = self._last
        if last is not None and last.stale_at > seen and last.near(row_price, verify_price):
            return last.values
        key = (_rounded(row_price), _rounded(verify_price))
        kept = self._kept.get(key)
        if kept is None or kept.stale_at <= seen:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            table = self._calibration.table()
            values = PassValues(table, *pass_values(table, self._calibration.histogram(), row_price, verify_price))
            least, most = REFRESH_OBSERVATIONS
            kept = _Kept(row_price, verify_price, seen + min(max(seen // 4, least), most), values)
            self._kept[key] = kept
        self._last = kept
        return kept.values


def _rounded(price: float) -> int:
    return round(math.log(max(price, 1e-9)) / PRICE_STEP)


@compiled
def pass_values(
    table: FloatArray, histogram: FloatArray, row_price: float, verify_price: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean, gain and net of `PassValues`.

    Args:
        table: (bins,) acceptance by bin of confidence.
        histogram: (bins,) how often a next position's confidence falls in each bin; sums to 1.
        row_price, verify_price: as for `StoppingValues.at`.
    """
    bins = len(table)
    mean, gain, net = np.zeros(LEVELS), np.zeros((LEVELS, DEPTH)), np.zeros((LEVELS, DEPTH))
    acceptance, stride = np.zeros(bins), np.zeros(bins, np.int64)
    for level in range(LEVELS):
        ratio = 2.0 ** (level - LEVELS // 2)
        for b in range(bins):
            odds = table[b] / (1.0 - table[b]) * ratio
            acceptance[b] = odds / (1.0 + odds)
            mean[level] += histogram[b] * acceptance[b]
            stride[b] = round(-np.log(acceptance[b]) / GRID_STEP)
        here = np.zeros(GRID)
        here[0] = 1.0
        for depth in range(DEPTH):
            onward = np.zeros(GRID)
            for k in range(GRID):
                survival = np.exp(-GRID_STEP * k)
                if survival * mean[level] <= row_price + verify_price:
                    break
                if here[k] < 1e-6:
                    continue
                net[level, depth] -= here[k] * row_price
                for b in range(bins):
                    kept = survival * acceptance[b]
                    if kept <= verify_price:
                        continue
                    share = here[k] * histogram[b]
                    gain[level, depth] += share * kept
                    net[level, depth] += share * (kept - verify_price)
                    if k + stride[b] < GRID:
                        onward[k + stride[b]] += share
            here = onward
    return mean, gain, net


@compiled
def _between_levels(values: FloatArray, level: int, share: float, depth: int) -> float:
    return values[level, depth] + share * (values[level + 1, depth] - values[level, depth])


@compiled
def choose_start(
    mean: FloatArray,
    gain: FloatArray,
    net: FloatArray,
    conditional: FloatArray,
    charges: FloatArray,
    limits: IntArray,
    pass_price: float,
    start_price: float,
) -> tuple[IntArray, int, float, float]:
    """Whom to start, as the fields of a `Start`.

    Args:
        mean, gain, net: the `PassValues`.
        conditional: (n, K) of which the first column, the acceptance of each request's next token, is used.
        charges: (n,) tokens that starting each request costs beside its rows.
        limits: (n,) draft lengths that are not exceeded.
        pass_price: tokens that a pass costs whoever is in it.
        start_price: tokens that the first pass costs beyond that.
    """
    n, depth = len(limits), net.shape[1]
    level, share = np.zeros(n, np.int64), np.zeros(n)
    for i in range(n):
        low, acceptance = 0, conditional[i, 0]
        while low < LEVELS - 2 and acceptance > mean[low + 1]:
            low += 1
        level[i] = low
        share[i] = min(max((acceptance - mean[low]) / max(mean[low + 1] - mean[low], 1e-12), 0.0), 1.0)

    started = limits > 0
    passes = depth
    # Fewer passes make fewer requests worth their charges, and fewer requests make fewer passes pay; two rounds settle.
    for _ in range(2):
        totals = np.zeros(depth)
        for i in range(n):
            if started[i]:
                for d in range(min(limits[i], depth)):
                    value = _between_levels(net, level[i], share[i], d)
                    if value <= 1e-9:
                        break  # nor do later passes bring anything
                    totals[d] += value
        passes = 0
        while passes < depth and totals[passes] > pass_price:
            passes += 1
        settled = True
        for i in range(n):
            worth = -charges[i]
            for d in range(min(limits[i], passes)):
                worth += _between_levels(net, level[i], share[i], d)
            settled = settled and started[i] == (worth > 0.0)
            started[i] = worth > 0.0
        if settled:
            break

    lengths, requests, expected, surplus = np.zeros(n, np.int64), 0, 0.0, -pass_price * passes - start_price
    for i in range(n):
        if started[i]:
            lengths[i] = limits[i]
            requests += 1
            surplus -= charges[i]
            for d in range(min(limits[i], passes)):
                expected += _between_levels(gain, level[i], share[i], d)
                surplus += _between_levels(net, level[i], share[i], d)
    if surplus <= 0.0:
        return np.zeros(n, np.int64), 0, 0.0, 0.0
    return lengths, requests, expected, surplus
