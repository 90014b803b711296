"""Acceptance by drafter confidence.

The confidence of a draft position is the largest probability of the distribution that its token is sampled from. It is
a covariate, not a probability of acceptance: the acceptance at a given confidence is learnt online, in bins, for the
whole server, and each request has an odds ratio of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.acceptance import MAX_ACCEPTANCE
from turbospec.models.logistic import (
    LogisticModel,
    Terms,
    between_request_variance,
    learn,
    learn_between_request_variance,
    logistic,
    posterior,
)
from turbospec.runtime.kernels import compiled, unnamed

BIN_EDGES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995])
"""Confidences at which the bins meet: narrow where acceptance is high."""
BIN_CENTRES = (np.concatenate([[0.0], BIN_EDGES]) + np.concatenate([BIN_EDGES, [1.0]])) / 2
"""(bins,) a bin's centre is also its assumed acceptance before any observation."""


class VerifiedConfidence(NamedTuple):
    """A step's verified drafts with the drafter's confidence, as in a `StepOutcome`."""

    rows: IntArray
    """(n,) rows of the per-request state."""
    drafted: IntArray
    accepted: IntArray
    truncated: BoolArray
    proposed: IntArray
    confidence: FloatArray
    """(n, at least max proposed)"""


class ConfidenceCalibration:
    """Acceptance probability as a function of confidence: a `LogisticModel` over bins of confidence.

    Args:
        capacity: rows of per-request state.
        memory: observations that the server's terms remember.
        request_memory: observed positions that a request's term remembers.
    """

    def __init__(self, capacity: int, *, memory: float = 500.0, request_memory: float = 48.0) -> None:
        self.model = LogisticModel(BIN_CENTRES, capacity, memory=memory, request_memory=request_memory)
        self.observations = 0
        """Verified tokens seen so far."""
        self._first_positions = np.ones(len(BIN_CENTRES))
        """(bins,) discounted counts of the confidence of a draft's first position."""

    def reset(self, rows: IntArray, capacity: int) -> None:
        """Forget the requests of these rows; the state grows to `capacity` rows."""
        self.model.reset(rows, capacity)

    def table(self) -> FloatArray:
        """(bins,) acceptance probability in each bin of confidence, for the average request."""
        return _table(unnamed(self.model.terms))

    def histogram(self) -> FloatArray:
        """(bins,) share of drafts whose first position has its confidence in each bin; sums to 1.

        First positions only, because a gate lets deeper ones be drafted only after high confidence.
        """
        return self._first_positions / self._first_positions.sum()

    def odds_ratios(self, rows: IntArray) -> FloatArray:
        """(n,) odds of these requests' acceptance, relative to the odds in the table."""
        return _odds_ratios(unnamed(self.model.terms), rows)

    def observe(
        self,
        rows: IntArray,
        drafted: IntArray,
        accepted: IntArray,
        truncated: BoolArray,
        proposed: IntArray,
        confidence: FloatArray,
    ) -> FloatArray:
        """Learn from a step's verified tokens.

        Args:
            rows: (n,) rows of the per-request state.
            drafted, accepted, truncated, proposed: (n,) as in a `StepOutcome`.
            confidence: (n, at least max proposed) as in a `StepOutcome`.

        Returns:
            (n,) predicted acceptance, before this update, of the token that was proposed but not verified; NaN for a
            request without one.
        """
        drafts = VerifiedConfidence(rows, drafted, accepted, truncated, proposed, confidence)
        dropped_acceptance, observed = _observe(
            unnamed(self.model.terms),
            self._first_positions,
            unnamed(drafts),
            self.model.memory,
            self.model.request_memory,
        )
        self.observations += observed
        return dropped_acceptance


@compiled
def _table(terms: Terms) -> FloatArray:
    terms = Terms(*terms)
    table = np.empty(len(terms.prior))
    for b in range(len(table)):
        p = logistic(terms.prior[b] + terms.level[0] + terms.offsets[0, b])
        table[b] = min(max(p, 1.0 - MAX_ACCEPTANCE), MAX_ACCEPTANCE)
    return table


@compiled
def bin_of(confidence: float) -> int:
    """Bin number of a confidence in [0, 1]."""
    low = 0
    while low < len(BIN_EDGES) and confidence >= BIN_EDGES[low]:
        low += 1
    return low


@compiled
def _observe(
    terms: Terms, first_positions: FloatArray, drafts: VerifiedConfidence, memory: float, request_memory: float
) -> tuple[FloatArray, int]:
    """Update the model and the counts of first positions, both in place.

    Returns:
        (n,) predicted acceptance of each request's dropped token, and the number of positions observed.
    """
    terms, drafts = Terms(*terms), VerifiedConfidence(*drafts)
    rows, drafted, confidence = drafts.rows, drafts.drafted, drafts.confidence
    dropped_acceptance, between_variance = np.full(len(rows), np.nan), between_request_variance(terms)
    for i in range(len(rows)):
        if drafted[i] < min(drafts.proposed[i], confidence.shape[1]):
            b = bin_of(confidence[i, drafted[i]])
            request_mean = posterior(terms.requests, rows[i], between_variance)[0]
            dropped_acceptance[i] = logistic(terms.prior[b] + terms.level[0] + terms.offsets[0, b] + request_mean)
    observed, counts = 0, np.zeros(len(first_positions))
    for i in range(len(rows)):
        if not np.isnan(confidence[i, 0]):
            counts[bin_of(confidence[i, 0])] += 1.0
        successes = drafts.accepted[i]
        positions = successes + 1 if successes < drafted[i] and not drafts.truncated[i] else successes
        positions = min(positions, confidence.shape[1])
        for j in range(positions):
            success = 1.0 if j < successes else 0.0
            learn(terms, 0, rows[i], bin_of(confidence[i, j]), success, between_variance, memory, request_memory)
        if positions > 0:
            learn_between_request_variance(terms, rows[i], between_variance)
            observed += positions
    first_positions[:] = first_positions * (1.0 - 1.0 / memory) ** counts.sum() + counts
    return dropped_acceptance, observed


@compiled
def _odds_ratios(terms: Terms, rows: IntArray) -> FloatArray:
    terms = Terms(*terms)
    ratios, between_variance = np.empty(len(rows)), between_request_variance(terms)
    for i in range(len(rows)):
        ratios[i] = np.exp(posterior(terms.requests, rows[i], between_variance)[0])
    return ratios
