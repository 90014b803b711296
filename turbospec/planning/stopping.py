"""Expected gain of starting a gated draft: an optimal stopping problem.

A plan is made before drafting, when the acceptance of a position is known but the drafter's confidence in it is not.
The gate uses the confidence later: a draft continues while confidence is high and ends when it is low. This gains more
than any fixed length. The expected gain of the pass at depth d for one request, minus the price of its row, is

    v(d) = Σ_S m_d(S) · [ Σ_b h_b · (S·a_b − verify)⁺ − row ],     over the S with   S·ā > row + verify

where m_d(S) is the probability that the request reaches that pass with survival S (the probability that all its drafted
tokens are accepted), h_b the share of positions whose confidence falls in bin b, a_b their acceptance, ā its mean. v
does not increase with d, so the passes that pay, Σ_i v_i(d) > price of a pass, are the first ones. The price of a pass
is compared with the gain of the whole batch: a request whose gain alone would not pay for a pass still gains in a pass
that runs anyway.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.confidence import ConfidenceCalibration
from turbospec.runtime.kernels import compiled

SURVIVAL_GRID_SIZE = 40
SURVIVAL_GRID_STEP = 0.1
"""Step of the grid over -log S, which ends at S = 0.02."""
QUALITY_LEVELS = 13
"""Levels of request quality: odds ratios of acceptance, powers of 2 around 1, relative to the server's calibration."""
MAX_PASSES = 16
"""Deeper passes are not evaluated: few drafts get that far."""
REFRESH_OBSERVATIONS = (16, 512)
"""Number of new observations after which values are recomputed: a quarter of those so far, within these bounds."""
MAX_CACHED = 64
"""Price pairs whose values are cached."""
PRICE_TOLERANCE = 0.1
"""Relative difference of prices up to which values are shared."""


class PassValues(NamedTuple):
    """v(d) for requests of different quality."""

    table: FloatArray
    """(bins,) a_b, the calibration that the values are based on."""
    mean: FloatArray
    """(QUALITY_LEVELS,) ā, mean acceptance of the next token, rising: the level of a request is found by it."""
    gain: FloatArray
    """(QUALITY_LEVELS, MAX_PASSES) expected accepted tokens of each pass."""
    net: FloatArray
    """(QUALITY_LEVELS, MAX_PASSES) v(d): the same minus the prices of the row and of its verification."""


class StartPrices(NamedTuple):
    """Costs of drafting that do not depend on which requests draft, in tokens: λ times seconds."""

    drafter_pass: float
    """Each drafter pass."""
    start: float
    """Once, in addition."""


class Start(NamedTuple):
    """Which requests start to draft, and the predicted gain."""

    draft_lengths: IntArray
    """(n,) the draft limit of a request that starts, else 0; all 0 where no pass pays."""
    requests: int
    """Number of requests that start."""
    gain: float
    """Expected accepted tokens."""
    surplus: float
    """`gain` minus the price of everything that drafting costs, in tokens."""


class _CachedValues(NamedTuple):
    row_price: float
    verify_price: float
    valid_until: int
    """Number of the calibration's observations from which the values must be recomputed."""
    values: PassValues

    def is_near(self, row_price: float, verify_price: float) -> bool:
        return (
            abs(row_price - self.row_price) <= PRICE_TOLERANCE * self.row_price
            and abs(verify_price - self.verify_price) <= PRICE_TOLERANCE * self.verify_price
        )


class PassValueCache:
    """`PassValues` by price, recomputed as the calibration learns.

    Args:
        calibration: acceptance by confidence.
    """

    def __init__(self, calibration: ConfidenceCalibration) -> None:
        self._calibration = calibration
        self._cached: dict[tuple[int, int], _CachedValues] = {}
        """By rounded prices."""
        self._last: _CachedValues | None = None

    def at(self, row_price: float, verify_price: float) -> PassValues:
        """Values for these prices, within `PRICE_TOLERANCE`.

        Args:
            row_price: price of a request's row in a drafter pass, in tokens.
            verify_price: price of verifying one token, in tokens.
        """
        observations = self._calibration.observations
        last = self._last
        if last is not None and last.valid_until > observations and last.is_near(row_price, verify_price):
            return last.values
        key = (_rounded(row_price), _rounded(verify_price))
        cached = self._cached.get(key)
        if cached is None or cached.valid_until <= observations:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            values = pass_values(self._calibration.table(), self._calibration.histogram(), row_price, verify_price)
            least, most = REFRESH_OBSERVATIONS
            valid_until = observations + min(max(observations // 4, least), most)
            cached = _CachedValues(row_price, verify_price, valid_until, values)
            self._cached[key] = cached
        self._last = cached
        return cached.values


def _rounded(price: float) -> int:
    return round(math.log(max(price, 1e-9)) / PRICE_TOLERANCE)


@compiled
def pass_values(table: FloatArray, histogram: FloatArray, row_price: float, verify_price: float) -> PassValues:
    """Compute v(d) for every level of request quality.

    Args:
        table: (bins,) a_b: acceptance by bin of confidence.
        histogram: (bins,) h_b: share of positions with their confidence in each bin; sums to 1.
        row_price, verify_price: as for `PassValueCache.at`.
    """
    bins = len(table)
    mean = np.zeros(QUALITY_LEVELS)
    gain, net = np.zeros((QUALITY_LEVELS, MAX_PASSES)), np.zeros((QUALITY_LEVELS, MAX_PASSES))
    acceptance, stride = np.zeros(bins), np.zeros(bins, np.int64)
    for level in range(QUALITY_LEVELS):
        ratio = 2.0 ** (level - QUALITY_LEVELS // 2)
        for b in range(bins):
            odds = table[b] / (1.0 - table[b]) * ratio
            acceptance[b] = odds / (1.0 + odds)
            mean[level] += histogram[b] * acceptance[b]
            stride[b] = round(-np.log(acceptance[b]) / SURVIVAL_GRID_STEP)
        mass = np.zeros(SURVIVAL_GRID_SIZE)
        mass[0] = 1.0
        for depth in range(MAX_PASSES):
            next_mass = np.zeros(SURVIVAL_GRID_SIZE)
            for k in range(SURVIVAL_GRID_SIZE):
                survival = np.exp(-SURVIVAL_GRID_STEP * k)
                if survival * mean[level] <= row_price + verify_price:
                    break
                if mass[k] < 1e-6:
                    continue
                net[level, depth] -= mass[k] * row_price
                for b in range(bins):
                    accepted = survival * acceptance[b]
                    if accepted <= verify_price:
                        continue
                    share = mass[k] * histogram[b]
                    gain[level, depth] += share * accepted
                    net[level, depth] += share * (accepted - verify_price)
                    if k + stride[b] < SURVIVAL_GRID_SIZE:
                        next_mass[k + stride[b]] += share
            mass = next_mass
    return PassValues(table, mean, gain, net)


@compiled
def _interpolate(values: FloatArray, level: int, share: float, depth: int) -> float:
    return values[level, depth] + share * (values[level + 1, depth] - values[level, depth])


@compiled
def choose_start(
    values: PassValues,
    conditional: FloatArray,
    request_prices: FloatArray,
    limits: IntArray,
    prices: StartPrices,
) -> Start:
    """Choose the requests that start to draft.

    Args:
        values: v(d) by request quality.
        conditional: (n, K) a[i,j], of which the first column, the acceptance of the next token, is used.
        request_prices: (n,) price of starting each request in addition to its rows (catching up), in tokens.
        limits: (n,) draft limits.
        prices: costs of drafting that do not depend on which requests start.
    """
    values, prices = PassValues(*values), StartPrices(*prices)
    mean, gain, net = values.mean, values.gain, values.net
    n, depth = len(limits), net.shape[1]
    level, share = np.zeros(n, np.int64), np.zeros(n)
    for i in range(n):
        low, acceptance = 0, conditional[i, 0]
        while low < QUALITY_LEVELS - 2 and acceptance > mean[low + 1]:
            low += 1
        level[i] = low
        share[i] = min(max((acceptance - mean[low]) / max(mean[low + 1] - mean[low], 1e-12), 0.0), 1.0)

    started = limits > 0
    passes = depth
    # With fewer passes fewer requests pay, and with fewer requests fewer passes pay. Two rounds suffice.
    for _ in range(2):
        totals = np.zeros(depth)
        for i in range(n):
            if started[i]:
                for d in range(min(limits[i], depth)):
                    value = _interpolate(net, level[i], share[i], d)
                    if value <= 1e-9:
                        break  # v(d) does not increase with d
                    totals[d] += value
        passes = 0
        while passes < depth and totals[passes] > prices.drafter_pass:
            passes += 1
        settled = True
        for i in range(n):
            surplus = -request_prices[i]
            for d in range(min(limits[i], passes)):
                surplus += _interpolate(net, level[i], share[i], d)
            settled = settled and started[i] == (surplus > 0.0)
            started[i] = surplus > 0.0
        if settled:
            break

    lengths, requests, expected = np.zeros(n, np.int64), 0, 0.0
    total_surplus = -prices.drafter_pass * passes - prices.start
    for i in range(n):
        if started[i]:
            lengths[i] = limits[i]
            requests += 1
            total_surplus -= request_prices[i]
            for d in range(min(limits[i], passes)):
                expected += _interpolate(gain, level[i], share[i], d)
                total_surplus += _interpolate(net, level[i], share[i], d)
    if total_surplus <= 0.0:
        return Start(np.zeros(n, np.int64), 0, 0.0, 0.0)
    return Start(lengths, requests, expected, total_surplus)
