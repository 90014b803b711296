"""What the drafter's confidence says of acceptance.

The confidence of a draft position is the largest probability of the distribution that its token is drawn from. It is
a covariate, not a probability of acceptance: how often tokens of a given confidence are accepted is learnt online, in
bins, for the server, and each request carries an odds ratio of its own.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.acceptance import LIMIT
from turbospec.models.logistic import LogisticModel, Terms, between, effect, learn, learn_spread, logistic
from turbospec.runtime.kernels import compiled

EDGES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995])
CENTRES = (np.concatenate([[0.0], EDGES]) + np.concatenate([EDGES, [1.0]])) / 2


class ConfidenceCalibration:
    """Acceptance probability as a function of confidence: a `LogisticModel` over bins of confidence.

    Args:
        capacity: rows of per-request state; `rows` given to the methods index it.
        memory: observations that the server's terms remember.
        request_memory: observed positions that a request's term remembers.
    """

    def __init__(self, capacity: int, *, memory: float = 500.0, request_memory: float = 48.0) -> None:
        self.model = LogisticModel(CENTRES, capacity, memory=memory, request_memory=request_memory)
        self.first = np.ones(len(CENTRES))
        self.observations = 0

    def reset(self, rows: IntArray, capacity: int) -> None:
        """Forget these rows' requests; the state grows to `capacity` rows."""
        self.model.reset(rows, capacity)

    def table(self) -> FloatArray:
        """(bins,) acceptance probability in each bin of confidence, for a request like most."""
        return _table(self.model.terms)

    def histogram(self) -> FloatArray:
        """(bins,) how often the confidence of a draft's first position falls in each bin; sums to 1.

        First positions alone: deeper ones are drafted only where the drafter was sure before.
        """
        return self.first / self.first.sum()

    def odds_ratios(self, rows: IntArray) -> FloatArray:
        """(n,) how the odds of these requests' acceptance differ from the table's."""
        return _odds_ratios(self.model.terms, rows)

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
            confidence: (n, at least max proposed).

        Returns:
            (n,) the acceptance that was promised of the token proposed but not verified; NaN where there is none.
        """
        promised, seen = _observe(
            self.model.terms, self.first, rows, drafted, accepted, truncated, proposed, confidence,
            self.model.memory, self.model.request_memory,
        )  # fmt: skip
        self.observations += seen
        return promised


@compiled
def _table(terms: Terms) -> FloatArray:
    table = np.empty(len(terms.prior))
    for b in range(len(table)):
        p = logistic(terms.prior[b] + terms.level[0] + terms.offsets[0, b])
        table[b] = min(max(p, 1.0 - LIMIT), LIMIT)
    return table


@compiled
def bin_of(confidence: float) -> int:
    """The bin of a confidence in [0, 1]."""
    low = 0
    while low < len(EDGES) and confidence >= EDGES[low]:
        low += 1
    return low


@compiled
def _observe(
    terms: Terms,
    first: FloatArray,
    rows: IntArray,
    drafted: IntArray,
    accepted: IntArray,
    truncated: BoolArray,
    proposed: IntArray,
    confidence: FloatArray,
    memory: float,
    request_memory: float,
) -> tuple[FloatArray, int]:
    """Update the model and the first positions' histogram; what was promised, and the number of positions observed."""
    promised, spread = np.full(len(rows), np.nan), between(terms)
    for i in range(len(rows)):
        if drafted[i] < min(proposed[i], confidence.shape[1]):
            b = bin_of(confidence[i, drafted[i]])
            of_request = effect(terms.requests, rows[i], spread)[0]
            promised[i] = logistic(terms.prior[b] + terms.level[0] + terms.offsets[0, b] + of_request)
    seen_in_all, started = 0, np.zeros(len(first))
    for i in range(len(rows)):
        if not np.isnan(confidence[i, 0]):
            started[bin_of(confidence[i, 0])] += 1.0
        good = accepted[i]
        seen = good + 1 if good < drafted[i] and not truncated[i] else good
        seen = min(seen, confidence.shape[1])
        for j in range(seen):
            hit = 1.0 if j < good else 0.0
            learn(terms, 0, rows[i], bin_of(confidence[i, j]), hit, spread, memory, request_memory)
        if seen > 0:
            learn_spread(terms, rows[i], spread)
            seen_in_all += seen
    first[:] = first * (1.0 - 1.0 / memory) ** started.sum() + started
    return promised, seen_in_all


@compiled
def _odds_ratios(terms: Terms, rows: IntArray) -> FloatArray:
    ratios, spread = np.empty(len(rows)), between(terms)
    for i in range(len(rows)):
        ratios[i] = np.exp(effect(terms.requests, rows[i], spread)[0])
    return ratios
