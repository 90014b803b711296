"""The gate that ends drafts early on the drafter's confidence."""

from __future__ import annotations

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.confidence import bin_of
from turbospec.runtime.kernels import compiled


class SurvivalGate:
    """Stops drafting a request when its next token no longer pays, judged by the confidences drafted so far.

    With P the probability that all tokens drafted so far survive (the product of their calibrated acceptances), a
    token is verified if P earns its place in the target's pass, and a further pass is run for the requests that expect
    P · a_next above the price of a row, as long as together they also pay for the pass itself. Survival only falls, so
    looking one pass ahead is the optimal stopping rule (the monotone case; Chow and Robbins, 1961).

    Args:
        table: (bins,) acceptance by bin of confidence, at most a little older.
        odds_ratios: (n,) how the odds of each request's acceptance differ from the table's.
        acceptance: (n, K) acceptance expected of each position before its confidence is known.
        limits: (n,) draft lengths that are not exceeded.
        prices: (3,) tokens that a further draft pass costs; that a request's row in it costs, its verification
            included; and that verifying one token costs.
    """

    def __init__(
        self,
        table: FloatArray,
        odds_ratios: FloatArray,
        acceptance: FloatArray,
        limits: IntArray,
        prices: FloatArray,
    ) -> None:
        self._table = table
        self._odds_ratios = odds_ratios
        self._acceptance = acceptance
        self._prices = prices
        # One array for survival, tokens drafted and limit: entering compiled code costs time for each argument.
        self._state = np.ones((3, len(limits)))
        self._state[1] = 0.0
        self._state[2] = limits

    def afresh(self, limits: IntArray) -> SurvivalGate:
        """The gate of another step of the same requests, on the same estimates."""
        return SurvivalGate(self._table, self._odds_ratios, self._acceptance, limits, self._prices)

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        return _advance(self._table, self._odds_ratios, self._acceptance, self._state, self._prices, rows, confidence)


@compiled
def _advance(
    table: FloatArray,
    odds_ratios: FloatArray,
    acceptance: FloatArray,
    state: FloatArray,
    prices: FloatArray,
    rows: IntArray,
    confidence: FloatArray,
) -> tuple[BoolArray, BoolArray]:
    keep, more = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    survival, drafted, limits = state[0], state[1], state[2]
    pass_price, row_price, verify_price = prices[0], prices[1], prices[2]
    surplus = 0.0
    for r in range(len(rows)):
        i = rows[r]
        odds = table[bin_of(confidence[r])]
        odds = odds / (1.0 - odds) * odds_ratios[i]
        survival[i] *= odds / (1.0 + odds)
        drafted[i] += 1.0
        keep[r] = survival[i] > verify_price
        if keep[r] and drafted[i] < limits[i]:
            gain = survival[i] * acceptance[i, int(drafted[i])] - row_price
            if gain > 0.0:
                more[r] = True
                surplus += gain
    if surplus <= pass_price:
        more[:] = False
    return keep, more
