"""What the drafter's confidence says: its calibration, and the gate that ends drafts by it.

The confidence of a draft position is the largest probability of the distribution that its token is drawn from. It is
a covariate, not a probability of acceptance: how often tokens of a given confidence are accepted is learnt online, in
bins, for the server, and each request carries an odds ratio of its own as in `acceptance`.
"""

from __future__ import annotations

import numpy as np

from turbospec.acceptance import LIMIT, RequestSpread, learn_spread, odds_ratio
from turbospec.compiled import compiled
from turbospec.types import BoolArray, FloatArray, IntArray

EDGES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995])
CENTRES = (np.concatenate([[0.0], EDGES]) + np.concatenate([EDGES, [1.0]])) / 2


class ConfidenceCalibration:
    """Acceptance probability as a function of confidence, by discounted Beta posteriors in bins of confidence.

    Args:
        capacity: rows of per-request state; `rows` given to the methods index it.
        memory: observations that a bin remembers.
        prior_strength: observations that the prior (acceptance = confidence) weighs.
        request_memory: observed positions that a request's ratio remembers.
    """

    def __init__(
        self,
        capacity: int,
        *,
        memory: float = 500.0,
        prior_strength: float = 4.0,
        request_memory: float = 48.0,
    ) -> None:
        self.memory = memory
        self.prior_strength = prior_strength
        self.spread = RequestSpread()
        self.request_memory = request_memory
        self.bins = np.zeros((2, len(CENTRES)))
        self.first = np.ones(len(CENTRES))
        self.requests = np.zeros((capacity, 3))
        self.observations = 0

    def reset(self, rows: IntArray, capacity: int) -> None:
        """Forget these rows' requests; the state grows to `capacity` rows."""
        if len(self.requests) < capacity:
            grown = np.zeros((capacity, 3))
            grown[: len(self.requests)] = self.requests
            self.requests = grown
        self.requests[rows] = 0.0

    def table(self) -> FloatArray:
        """(bins,) acceptance probability in each bin of confidence."""
        return _table(self.bins, self.prior_strength)

    def histogram(self) -> FloatArray:
        """(bins,) how often the confidence of a draft's first position falls in each bin; sums to 1.

        First positions alone: deeper ones are drafted only where the drafter was sure before.
        """
        return self.first / self.first.sum()

    def ratios(self, rows: IntArray) -> FloatArray:
        """(n,) odds ratio of each request's acceptance against the server's calibration."""
        return _ratios(self.requests, rows, self.spread.strength)

    def dropped(self, rows: IntArray, drafted: IntArray, proposed: IntArray, confidence: FloatArray) -> FloatArray:
        """(n,) acceptance promised by the confidence of the token that was proposed but not verified, else NaN."""
        return _dropped(self.table(), self.requests, self.spread.strength, rows, drafted, proposed, confidence)

    def observe(
        self, rows: IntArray, drafted: IntArray, accepted: IntArray, truncated: BoolArray, confidence: FloatArray
    ) -> None:
        """Learn from a step's verified tokens; confidence is (n, at least max drafted)."""
        self.observations += _observe(
            self.bins,
            self.first,
            self.table(), self.requests, rows, drafted, accepted, truncated, confidence,
            self.memory,
            self.request_memory,
            self.spread.sums,
        )  # fmt: skip


class SurvivalGate:
    """Stops drafting a request when its next token no longer pays, judged by the confidences drafted so far.

    With P the probability that all tokens drafted so far survive (the product of their calibrated acceptances), a
    token is verified if P earns its place in the target's pass, and a further pass is run for the requests that expect
    P · a_next above the price of a row, as long as together they also pay for the pass itself. Survival only falls, so
    looking one pass ahead is the optimal stopping rule (the monotone case; Chow and Robbins, 1961).

    Args:
        table: (bins,) acceptance by bin of confidence.
        ratios: (n,) odds ratio of each request.
        acceptance: (n, K) acceptance expected of each position before its confidence is known.
        limits: (n,) draft lengths that are not exceeded.
        pass_price: tokens that a further draft pass costs.
        row_price: tokens that a request's row in it costs, its verification included.
        verify_price: tokens that verifying one token costs.
    """

    def __init__(
        self,
        table: FloatArray,
        ratios: FloatArray,
        acceptance: FloatArray,
        limits: IntArray,
        pass_price: float,
        row_price: float,
        verify_price: float,
    ) -> None:
        self._table = table
        self._ratios = ratios
        self._acceptance = acceptance
        self._limits = limits
        self._pass_price = pass_price
        self._row_price = row_price
        self._verify_price = verify_price
        self._survival = np.ones(len(ratios))
        self._drafted = np.zeros(len(ratios), np.int64)

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        return _advance(
            self._table, self._ratios, self._acceptance, self._limits, self._survival, self._drafted,
            rows, confidence, self._pass_price, self._row_price, self._verify_price,
        )  # fmt: skip


@compiled
def _table(bins: FloatArray, strength: float) -> FloatArray:
    table = np.empty(bins.shape[1])
    for b in range(len(table)):
        own = (bins[0, b] + strength * CENTRES[b]) / (bins[1, b] + strength)
        table[b] = min(max(own, 1.0 - LIMIT), LIMIT)
    return table


@compiled
def _bin(confidence: float) -> int:
    low = 0
    while low < len(EDGES) and confidence >= EDGES[low]:
        low += 1
    return low


@compiled
def _ratios(requests: FloatArray, rows: IntArray, strength: float) -> FloatArray:
    ratios = np.empty(len(rows))
    for i in range(len(rows)):
        row = rows[i]
        ratios[i] = odds_ratio(requests[row, 0], requests[row, 1], requests[row, 2], strength)
    return ratios


@compiled
def _dropped(
    table: FloatArray,
    requests: FloatArray,
    strength: float,
    rows: IntArray,
    drafted: IntArray,
    proposed: IntArray,
    confidence: FloatArray,
) -> FloatArray:
    promised = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        if proposed[i] > drafted[i]:
            row = rows[i]
            odds = table[_bin(confidence[i, drafted[i]])]
            odds *= odds_ratio(requests[row, 0], requests[row, 1], requests[row, 2], strength) / (1.0 - odds)
            promised[i] = odds / (1.0 + odds)
    return promised


@compiled
def _observe(
    bins: FloatArray,
    first: FloatArray,
    table: FloatArray,
    requests: FloatArray,
    rows: IntArray,
    drafted: IntArray,
    accepted: IntArray,
    truncated: BoolArray,
    confidence: FloatArray,
    memory: float,
    request_memory: float,
    spread: FloatArray,
) -> int:
    """Update bins and requests; the number of positions observed."""
    seen_in_all = 0
    for i in range(len(rows)):
        if not np.isnan(confidence[i, 0]):
            first *= 1.0 - 1.0 / memory
            first[_bin(confidence[i, 0])] += 1.0
        good = accepted[i]
        seen = good + 1 if good < drafted[i] and not truncated[i] else good
        seen = min(seen, confidence.shape[1])
        expected = 0.0
        for j in range(seen):
            b = _bin(confidence[i, j])
            hit = 1.0 if j < good else 0.0
            expected += table[b]
            fade = 1.0 - 1.0 / memory
            bins[0, b] = bins[0, b] * fade + hit
            bins[1, b] = bins[1, b] * fade + 1.0
        if seen > 0:
            row = rows[i]
            learn_spread(spread, min(good, seen) - expected, float(seen), requests[row], expected / seen)
            fade = (1.0 - 1.0 / request_memory) ** seen
            requests[row, 0] = requests[row, 0] * fade + min(good, seen)
            requests[row, 1] = requests[row, 1] * fade + seen
            requests[row, 2] = requests[row, 2] * fade + expected
            seen_in_all += seen
    return seen_in_all


@compiled
def _advance(
    table: FloatArray,
    ratios: FloatArray,
    acceptance: FloatArray,
    limits: IntArray,
    survival: FloatArray,
    drafted: IntArray,
    rows: IntArray,
    confidence: FloatArray,
    pass_price: float,
    row_price: float,
    verify_price: float,
) -> tuple[BoolArray, BoolArray]:
    keep, more = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    surplus = 0.0
    for r in range(len(rows)):
        i = rows[r]
        odds = table[_bin(confidence[r])]
        odds = odds / (1.0 - odds) * ratios[i]
        survival[i] *= odds / (1.0 + odds)
        drafted[i] += 1
        keep[r] = survival[i] > verify_price
        if keep[r] and drafted[i] < limits[i]:
            gain = survival[i] * acceptance[i, drafted[i]] - row_price
            if gain > 0.0:
                more[r] = True
                surplus += gain
    if surplus <= pass_price:
        more[:] = False
    return keep, more
