"""Comparison steps: steps without drafts, or with longer ones, run now and then while every step drafts."""

from __future__ import annotations

from turbospec.models.decode_rate import load_bucket


class ComparisonSteps:
    """Schedules comparison steps of one kind, so that the plan is compared with the present speed of its alternative.

    Each load (decoding requests, to a power of two) has comparison steps at intervals that double up to `MAX_INTERVAL`.
    An interval is counted from the last step of that kind, whatever its reason. The time lost to comparison steps is
    bounded by a share of all step time.

    Args:
        share: share of step time that comparison steps may lose against the steps that they replace.
    """

    FIRST_INTERVAL, MAX_INTERVAL = 8, 128
    """Steps."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._credit = 0.0
        """Seconds that may be lost."""
        self._interval: dict[int, int] = {}
        """By load bucket, in steps."""
        self._due: dict[int, int] = {}
        """By load bucket, the number of the step from which one is due."""

    def earn(self, step_seconds: float) -> None:
        """Add a finished step's share to the credit."""
        self._credit += self.share * step_seconds

    def is_due(self, requests: int, step: int, loss_seconds: float) -> bool:
        """Whether this step should be a comparison step; if so, its loss is charged to the credit.

        Args:
            requests: decoding requests.
            step: number of the step.
            loss_seconds: predicted value of the plan minus that of the comparison step, tokens over λ minus duration.
        """
        load = load_bucket(requests)
        # Not further ahead than an interval, even if the numbers of the steps have gone back.
        due = min(self._due.get(load, step + self.FIRST_INTERVAL), step + self.MAX_INTERVAL)
        self._due[load] = due
        if due > step or self._credit < loss_seconds:
            return False
        # The interval doubles even if the step teaches nothing: under a load whose steps nearly all contain prefill,
        # few comparison steps do.
        interval = min(2 * self._interval.get(load, self.FIRST_INTERVAL // 2), self.MAX_INTERVAL)
        self._interval[load], self._due[load] = interval, step + interval
        self._credit = min(self._credit - loss_seconds, 0.0)
        return True

    def learn(self, requests: int, step: int) -> None:
        """Take in a finished step of the kind that is compared with, whatever its reason.

        Args:
            requests: decoding requests.
            step: number of the step.
        """
        load = load_bucket(requests)
        self._due[load] = step + self._interval.get(load, self.FIRST_INTERVAL)
