"""Everything that is learnt of a drafter, kept together: one row of state a request in each model."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import IntArray, StepOutcome
from turbospec.models.acceptance import AcceptanceModel
from turbospec.models.confidence import ConfidenceCalibration

MIN_CONFIDENCE_OBSERVATIONS = 64
"""Verified tokens after which the drafter's confidence is trusted to end drafts."""


class DrafterModels:
    """Acceptance by position and acceptance by confidence.

    Args:
        max_draft: the engine's K, at least 1.
    """

    def __init__(self, max_draft: int) -> None:
        self.acceptance = AcceptanceModel(max_draft)
        self.calibration = ConfidenceCalibration(self.acceptance.slots.capacity)

    @property
    def capacity(self) -> int:
        """Rows of per-request state; grows."""
        return self.acceptance.slots.capacity

    @property
    def calibrated(self) -> bool:
        """Whether the drafter's confidence was seen often enough to end drafts by it."""
        return self.calibration.observations >= MIN_CONFIDENCE_OBSERVATIONS

    def rows_and_fresh(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of these ids, and those of them whose requests were not known and start afresh."""
        rows, fresh = self.acceptance.rows_and_fresh(request_ids)
        if len(fresh):
            self.calibration.reset(fresh, self.capacity)
        return rows, fresh

    def learn(self, rows: IntArray, class_ids: IntArray, outcome: StepOutcome, idle_steps: int) -> None:
        """Take in the verified tokens of a step in which requests drafted, the first after `idle_steps` without."""
        drafted, accepted, truncated = outcome.drafted, outcome.accepted, outcome.truncated
        if outcome.confidence is None:
            dropped = np.full(len(rows), math.nan)
        else:
            dropped = self.calibration.observe(rows, drafted, accepted, truncated, outcome.proposed, outcome.confidence)
        self.acceptance.observe(rows, class_ids, drafted, accepted, truncated, dropped, idle_steps)
