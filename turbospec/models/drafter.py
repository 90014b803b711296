"""Both acceptance models of a drafter, sharing one row of state per request."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import IntArray, StepOutcome
from turbospec.models.acceptance import AcceptanceModel
from turbospec.models.confidence import ConfidenceCalibration

MIN_CONFIDENCE_OBSERVATIONS = 64
"""Verified tokens needed before the drafter's confidence may end drafts."""


class DrafterModels:
    """Acceptance by position and acceptance by confidence.

    Args:
        max_draft: the engine's K, at least 1.
    """

    def __init__(self, max_draft: int) -> None:
        self.max_draft = max_draft
        self.acceptance = AcceptanceModel(max_draft)
        self.calibration = ConfidenceCalibration(self.acceptance.slots.capacity)

    @property
    def capacity(self) -> int:
        """Rows of per-request state; grows with the number of requests."""
        return self.acceptance.slots.capacity

    @property
    def calibrated(self) -> bool:
        """Whether `MIN_CONFIDENCE_OBSERVATIONS` have been seen."""
        return self.calibration.observations >= MIN_CONFIDENCE_OBSERVATIONS

    def assign_rows(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of per-request state of these requests.

        Returns:
            rows: (n,) the row of each request.
            new: those of the rows that were assigned now; both models have reset them.
        """
        rows, new = self.acceptance.assign_rows(request_ids)
        if len(new):
            self.calibration.reset(new, self.capacity)
        return rows, new

    def learn(self, rows: IntArray, class_ids: IntArray, outcome: StepOutcome, idle_steps: int) -> None:
        """Learn from a step with drafts.

        Args:
            rows: (n,) rows of the per-request state.
            class_ids: (n,) service classes.
            outcome: the step.
            idle_steps: steps without any draft just before this one.
        """
        drafted, accepted, truncated = outcome.drafted, outcome.accepted, outcome.truncated
        if outcome.confidence is None:
            dropped = np.full(len(rows), math.nan)
        else:
            dropped = self.calibration.observe(rows, drafted, accepted, truncated, outcome.proposed, outcome.confidence)
        self.acceptance.observe(rows, class_ids, drafted, accepted, truncated, dropped, idle_steps)
