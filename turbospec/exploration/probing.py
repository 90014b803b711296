"""Steps that are run to learn: drafts while drafting is off, and plain steps while it is on."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.decode_rate import load_bucket

SURPRISE = 1.2
"""Standard deviations by which probes must on average exceed what was expected of them to be followed up."""
MAX_SURPRISE = 4.0
"""Standard deviations of surprise that are kept: three failures in a row end any run of follow-ups."""
COMPANY = 1.3
"""Times what the best row alone would lose that may be lost to probe others with it."""
NO_NEWS = 0.5
"""Acceptance from which a success would change nothing: it is not the drafter that keeps drafting off."""
LEAST_DEVIATION = 0.1
"""Of a probe's successes, however sure the models are of themselves."""
LEAST_LOSS = 0.1
"""Part of a probe's time that counts as lost even if its tokens are worth it."""


def seconds_lost(seconds: float, gain: float) -> float:
    """What a probe loses that takes so many seconds and brings tokens worth so many."""
    return max(seconds - gain, LEAST_LOSS * seconds)


class ProbeBudget:
    """Loses at most a stated share of step time to probes, and less the longer they bring nothing new.

    A step earns `share` of its duration; a probe is due once the credit covers what it will lose, times a back-off that
    doubles with every probe that brings nothing new. Where drafting nearly pays a probe loses next to nothing, and many
    are made. For a request that was never drafted for, and of which little is expected, the back-off counts by
    its square root, as it may be of another kind; the loss to a drafter that is never right is bounded by `share`. A
    success that nobody expected is followed by another probe at once, on credit, for as long as the probes' accumulated
    surprise lasts (Page's cumulative sum), so that a drafter that is right again is noticed within a few steps.

    Args:
        share: part of step time that probes may lose, 0 for none.
        max_backoff: probes are at most this many times rarer than the budget allows.
    """

    def __init__(self, share: float, *, max_backoff: float = 8.0) -> None:
        self.share = share
        self.max_backoff = max_backoff
        self._credit = 0.0
        self._backoff = 1.0
        self._surprise = 0.0

    def earn(self, step_seconds: float) -> None:
        self._credit += self.share * step_seconds

    def choose(
        self,
        eligible: BoolArray,
        shared_seconds: float,
        seconds: FloatArray,
        expected: FloatArray,
        price: float,
        evidence: FloatArray,
        *,
        costs_are_old: bool = False,
    ) -> IntArray | None:
        """The rows to probe now, or None: the best one, and others where they add little to what is lost.

        Args:
            eligible: (n,) rows that can draft.
            shared_seconds: what a probe takes however many rows are in it.
            seconds: (n,) what each row adds to that.
            expected: (n,) acceptance of each row's next token.
            price: tokens that a second is worth.
            evidence: (n,) observations that each row's estimate rests on.
            costs_are_old: whether a probe is due as soon as those before it are paid for, whatever it is thought to
                lose: that may be far too much.
        """
        if self.share <= 0.0 or not eligible.any():
            return None
        whole, gains = shared_seconds + seconds, expected / price
        alone = np.maximum(whole - gains, LEAST_LOSS * whole)
        known = (evidence > 0.0) | (expected >= NO_NEWS)
        needed = np.where(known, self._backoff, math.sqrt(self._backoff)) * alone
        at_once = self._surprise > 0.0 or (costs_are_old and self._credit >= 0.0)
        due = eligible & (at_once | (self._credit >= needed))
        if not due.any():
            return None
        # A probe teaches in proportion to the variance it removes, 1 / (1 + evidence), for what it loses.
        worth = np.where(eligible, 1.0 / ((1.0 + evidence) * alone), -1.0)
        first = int(np.where(due, worth, -1.0).argmax())
        worth[first] = np.inf
        order = np.argsort(-worth)[: int(eligible.sum())]
        whole = shared_seconds + np.cumsum(seconds[order])
        together = np.maximum(whole - np.cumsum(gains[order]), LEAST_LOSS * whole)
        return np.sort(order[: np.flatnonzero(together <= COMPANY * alone[first])[-1] + 1])

    def spend(self, seconds: float) -> None:
        """Book what a probe really lost. Credit is not carried over: an hour at full speed buys no burst of probes."""
        self._credit = min(self._credit - seconds, 0.0)

    def learn(self, accepted: int, expected: FloatArray) -> None:
        """Lengthen the back-off after a probe that brought nothing new, end it after an unexpected success.

        Args:
            accepted: rows of the probe whose token was accepted.
            expected: (rows of the probe,) acceptance that was expected of each.
        """
        deviation = math.sqrt(float((expected * (1.0 - expected)).sum()))
        surprise = (accepted - float(expected.sum())) / max(deviation, LEAST_DEVIATION)
        self._surprise = min(max(0.0, self._surprise + surprise - SURPRISE), MAX_SURPRISE)
        self._backoff = 1.0 if self._surprise > 0.0 else min(2.0 * self._backoff, self.max_backoff)


class PlainSteps:
    """While every step drafts, now and then one that does not, so that drafting is compared with what is, not was.

    Each load (number of decoding requests, to a power of two) has plain steps at intervals that double up to
    `MAX_INTERVAL`, counted from the last one, whatever it was run for; together they may lose at most a share of all
    step time.

    Args:
        share: part of step time that plain steps may lose to the drafting steps in whose place they are run.
    """

    FIRST_INTERVAL, MAX_INTERVAL = 8, 128

    def __init__(self, share: float) -> None:
        self.share = share
        self._credit = 0.0
        self._interval: dict[int, int] = {}
        self._due: dict[int, int] = {}

    def earn(self, step_seconds: float) -> None:
        self._credit += self.share * step_seconds

    def is_due(self, requests: int, step: int, seconds: float) -> bool:
        """Whether this step should be a plain one, given the seconds that its drafts are thought to be worth."""
        load = load_bucket(requests)
        if self._due.setdefault(load, step + self.FIRST_INTERVAL) > step or self._credit < seconds:
            return False
        # Whether or not something comes of it: under a load whose steps nearly all have prompts, little does.
        interval = min(2 * self._interval.get(load, self.FIRST_INTERVAL // 2), self.MAX_INTERVAL)
        self._interval[load], self._due[load] = interval, step + interval
        self._credit = min(self._credit - seconds, 0.0)
        return True

    def learn(self, requests: int, step: int) -> None:
        """A plain step was run, whatever for."""
        load = load_bucket(requests)
        self._due[load] = step + self._interval.get(load, self.FIRST_INTERVAL)
