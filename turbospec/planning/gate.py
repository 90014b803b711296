"""The gate that ends drafts early, by the drafter's confidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.confidence import bin_of
from turbospec.runtime.kernels import compiled, unnamed


class GatePrices(NamedTuple):
    """What drafting one more token costs, in tokens: λ times the seconds that it takes."""

    drafter_pass: float
    """A further drafter pass, whatever the number of its rows."""
    row: float
    """A request's row in that pass, the verification of its token included."""
    verify: float
    """Verification of one token alone."""


class _Estimates(NamedTuple):
    """Acceptance that the gate decides by; see `SurvivalGate`."""

    table: FloatArray
    odds_ratios: FloatArray
    acceptance: FloatArray


class SurvivalGate:
    """Stops drafting for a request as soon as its next token no longer pays.

    Let S be the probability that all tokens drafted so far are accepted: the product of their acceptances, each
    calibrated to its confidence. A token is verified if S exceeds the price of its verification. A request joins a
    further pass if its expected gain S·a_next exceeds the price of a row. The pass runs if the summed surplus of these
    requests also exceeds the price of the pass. S never rises, so looking one pass ahead is the optimal stopping rule
    (the monotone case; Chow and Robbins, 1961).

    Args:
        table: (bins,) acceptance by bin of confidence.
        odds_ratios: (n,) odds of each request's acceptance, relative to the odds in the table.
        acceptance: (n, K) a[i,j]: acceptance of each position before its confidence is known.
        limits: (n,) draft limits.
        prices: what one more token costs.
    """

    def __init__(
        self,
        table: FloatArray,
        odds_ratios: FloatArray,
        acceptance: FloatArray,
        limits: IntArray,
        prices: GatePrices,
    ) -> None:
        self._estimates = unnamed(_Estimates(table, odds_ratios, acceptance))
        self._prices = unnamed(prices)
        # One array for survival, tokens drafted and limit: unpacking each array takes time in every drafter pass.
        self._state = np.ones((3, len(limits)))
        self._state[1] = 0.0
        self._state[2] = limits

    def for_next_step(self, limits: IntArray) -> SurvivalGate:
        """A new gate for the next step of the same requests, with the same estimates and prices."""
        return SurvivalGate(*self._estimates, limits, self._prices)

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Decide on the position just drafted; see `DraftGate.advance`."""
        return _advance(self._estimates, self._prices, self._state, rows, confidence)


@compiled
def _advance(
    estimates: _Estimates, prices: GatePrices, state: FloatArray, rows: IntArray, confidence: FloatArray
) -> tuple[BoolArray, BoolArray]:
    estimates, prices = _Estimates(*estimates), GatePrices(*prices)
    keep, more = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    survival, drafted, limits = state[0], state[1], state[2]
    surplus = 0.0
    for r in range(len(rows)):
        i = rows[r]
        odds = estimates.table[bin_of(confidence[r])]
        odds = odds / (1.0 - odds) * estimates.odds_ratios[i]
        survival[i] *= odds / (1.0 + odds)
        drafted[i] += 1.0
        keep[r] = survival[i] > prices.verify
        if keep[r] and drafted[i] < limits[i]:
            gain = survival[i] * estimates.acceptance[i, int(drafted[i])] - prices.row
            if gain > 0.0:
                more[r] = True
                surplus += gain
    if surplus <= prices.drafter_pass:
        more[:] = False
    return keep, more
