"""Probes: drafts made to learn from while drafting does not pay."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray

MULTI_ROW_LOSS_RATIO = 1.3
"""Largest loss of a probe of several rows, over the loss of a probe of the best single row."""
UNINFORMATIVE_ACCEPTANCE = 0.5
"""Predicted acceptance from which a success would change nothing: drafting is then off for another reason than the
drafter's acceptance."""
MIN_LOSS_SHARE = 0.1
"""Share of a probe's time that counts as lost even if its accepted tokens make up for all of it."""


def probe_loss_seconds(seconds: float, gain_seconds: float) -> float:
    """Time lost by a probe, in seconds.

    Args:
        seconds: that the probe adds to its step.
        gain_seconds: what its accepted tokens are worth: tokens over λ.
    """
    return max(seconds - gain_seconds, MIN_LOSS_SHARE * seconds)


class ProbeBudget:
    """Bounds the time lost to probes by a share of all step time, and spends less after the first probes.

    A step earns `share` of its duration as credit. A probe is due once the credit covers its expected loss times a
    back-off, which doubles with every probe. Where drafting nearly pays, a probe loses next to nothing, and probes are
    frequent. For a request that has never drafted and whose predicted acceptance is low, the square root of the
    back-off applies, because it may differ from the requests probed so far; the loss to a drafter that is never right
    stays bounded by `share`.

    Args:
        share: share of step time that probes may lose; 0 for no probes.
        max_backoff: upper bound of the back-off.
    """

    def __init__(self, share: float, *, max_backoff: float = 8.0) -> None:
        self.share = share
        self.max_backoff = max_backoff
        self._credit = 0.0
        """Seconds that may be lost; negative after a probe that lost more than predicted."""
        self._backoff = 1.0

    def earn(self, step_seconds: float) -> None:
        """Add a finished step's share to the credit."""
        self._credit += self.share * step_seconds

    def choose(
        self,
        eligible: BoolArray,
        shared_seconds: float,
        row_seconds: FloatArray,
        acceptance: FloatArray,
        price: float,
        evidence: FloatArray,
        *,
        costs_outdated: bool = False,
    ) -> IntArray | None:
        """The rows to probe now, each with a draft of one token; None where no probe is due.

        The best row is the one with the highest information per second lost. Other rows join it as long as the loss
        stays within `MULTI_ROW_LOSS_RATIO` of the best row's alone.

        Args:
            eligible: (n,) rows that can draft.
            shared_seconds: time that a probe adds to the step, however many rows it has.
            row_seconds: (n,) time that each row adds in addition.
            acceptance: (n,) predicted acceptance a[i,1] of each row's next token.
            price: λ in tokens/s.
            evidence: (n,) observations that each row's prediction is based on.
            costs_outdated: whether the predicted times may be far too high. A probe is then due as soon as earlier
                probes are paid for, whatever its predicted loss.

        Returns:
            Row numbers, rising.
        """
        if self.share <= 0.0 or not eligible.any():
            return None
        seconds, gain_seconds = shared_seconds + row_seconds, acceptance / price
        loss = np.maximum(seconds - gain_seconds, MIN_LOSS_SHARE * seconds)
        full_backoff = (evidence > 0.0) | (acceptance >= UNINFORMATIVE_ACCEPTANCE)
        needed = np.where(full_backoff, self._backoff, math.sqrt(self._backoff)) * loss
        at_once = costs_outdated and self._credit >= 0.0
        due = eligible & (at_once | (self._credit >= needed))
        if not due.any():
            return None
        # The information in a probe is the share of variance that it removes, 1 / (1 + evidence).
        merit = np.where(eligible, 1.0 / ((1.0 + evidence) * loss), -1.0)
        first = int(np.where(due, merit, -1.0).argmax())
        merit[first] = np.inf
        order = np.argsort(-merit)[: int(eligible.sum())]
        seconds = shared_seconds + np.cumsum(row_seconds[order])
        joint_loss = np.maximum(seconds - np.cumsum(gain_seconds[order]), MIN_LOSS_SHARE * seconds)
        return np.sort(order[: np.flatnonzero(joint_loss <= MULTI_ROW_LOSS_RATIO * loss[first])[-1] + 1])

    def spend(self, seconds: float) -> None:
        """Book the measured loss of a probe. Credit left over expires: fast steps must not buy a burst of probes."""
        self._credit = min(self._credit - seconds, 0.0)

    def back_off(self) -> None:
        """Double the back-off, up to its bound, after a probe."""
        self._backoff = min(2.0 * self._backoff, self.max_backoff)
