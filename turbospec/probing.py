"""While drafting is off: how often, and on which request, to look whether it would pay again."""

from __future__ import annotations

import numpy as np

from turbospec.types import BoolArray, FloatArray, IntArray

UNEXPECTED = 0.25
"""A success is a surprise where acceptance was thought to be lower than this; up to there drafting hardly ever pays."""


class ProbeBudget:
    """Spends at most a stated share of step time on probes, and less the longer they fail.

    A step earns `share` of its duration; a probe is due once the credit covers its cost, times a back-off that doubles
    with every probe that fails. A request that was never drafted for is exempt from the back-off, as it may be of
    another kind, but not from the budget: the loss to a drafter that is never right is bounded by `share`. A success
    that nobody expected is followed by another probe at once, beside the budget, so that a drafter that is right again
    is noticed within a few steps.

    Args:
        share: probes' part of step time, 0 for none.
        max_backoff: probes are at most this many times rarer than the budget allows.
    """

    def __init__(self, share: float, *, max_backoff: float = 8.0) -> None:
        self.share = share
        self.max_backoff = max_backoff
        self.seconds_spent = 0.0
        self.seconds_total = 0.0
        self._credit = 0.0
        self._backoff = 1.0
        self._follow_up = False

    @property
    def spent_share(self) -> float:
        """Part of all step time that went into probes so far."""
        return self.seconds_spent / self.seconds_total if self.seconds_total else 0.0

    def earn(self, step_seconds: float) -> None:
        self.seconds_total += step_seconds
        self._credit += self.share * step_seconds

    def choose(self, eligible: BoolArray, costs: FloatArray, evidence: FloatArray) -> int | None:
        """The row to probe now, or None.

        Args:
            eligible: (n,) rows that can draft.
            costs: (n,) seconds that a probe of each row takes.
            evidence: (n,) observations that each row's estimate rests on.
        """
        if self.share <= 0.0 or not eligible.any():
            return None
        # A probe teaches in proportion to the variance it removes, 1 / (1 + evidence), for its cost.
        worth = np.where(eligible, 1.0 / ((1.0 + evidence) * np.maximum(costs, 1e-9)), -1.0)
        row = int(worth.argmax())
        backoff = 1.0 if evidence[row] <= 0.0 else self._backoff
        return row if self._follow_up or self._credit >= costs[row] * backoff else None

    def spend(self, seconds: float) -> None:
        """Book what a probe really cost. Credit is not carried over: an hour at full speed buys no burst of probes."""
        if not self._follow_up:
            self._credit = min(self._credit - seconds, 0.0)
        self.seconds_spent += seconds

    def learn(self, drafted: IntArray, accepted: IntArray, expected: float) -> None:
        """Lengthen the back-off after a probe of which nothing was accepted, end it after any success.

        `expected` is the acceptance that was expected of the probe.
        """
        if not drafted.any():
            return
        success = bool(accepted.any())
        self._backoff = 1.0 if success else min(2.0 * self._backoff, self.max_backoff)
        self._follow_up = success and expected < UNEXPECTED
