"""`confidence`: stops drafting where the drafter doubts its own token, as in Hugging Face transformers.

Source: transformers 5, `assistant_confidence_threshold` (generation/candidate_generator.py,
`AssistedCandidateGenerator.update_candidate_strategy`; generation/stopping_criteria.py, `ConfidenceCriteria`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import BoolArray, FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import PolicyConfig

MIN_PAIRS = 6
"""Judged tokens that a refit takes; among them at least one accepted and one rejected."""
MISSED_COST = 3.0
"""Cost of stopping before a token that would be accepted, where drafting a rejected one costs 1 (75 % to 25 %)."""


class ConfidenceConfig(PolicyConfig):
    """Drafts up to the engine's maximum and stops each draft after the first token the drafter is unsure of."""

    policy: Literal["confidence"]
    threshold: float = Field(default=0.4, gt=0, lt=1)
    """Probability under which a token ends the draft, until enough tokens were judged to refit it."""
    window: int = Field(default=512, ge=MIN_PAIRS)
    """Judged tokens that the threshold is refitted to, the latest."""

    def build(self, profile: Profile | None, seed: int) -> ConfidencePolicy:
        return ConfidencePolicy(self.threshold, self.window)


class ConfidenceGate:
    """Ends a draft after its first token under the threshold; that token is still verified.

    It sees the largest probability of the draft distribution. That is the probability of the token itself, which
    transformers uses, at temperature 0; when sampling, only the maximum may be used without a bias (see `DraftGate`).
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        return np.ones(len(rows), np.bool_), confidence >= self._threshold

    def afresh(self, limits: IntArray) -> ConfidenceGate:
        return self  # it keeps nothing of the step


class ConfidencePolicy:
    """Refits the threshold after every step to the latest judged tokens of all requests.

    Transformers serves one request at a time, keeps the threshold from one to the next and judges it by the tokens of
    the running request; in a batch the latest `window` tokens of all requests stand for them. An engine that reports no
    confidence drafts the maximum always.
    """

    def __init__(self, threshold: float, window: int) -> None:
        self.threshold = threshold
        self._window = window
        self._confidence = np.zeros(0)
        self._accepted = np.zeros(0, np.bool_)

    def plan(self, view: StepView) -> StepPlan:
        reason = f"drafting while the drafter gives {self.threshold:.2f} or more"
        return StepPlan(view.draft_limits.copy(), reason=reason, gate=ConfidenceGate(self.threshold))

    def observe(self, outcome: StepOutcome) -> None:
        if outcome.confidence is None or not outcome.drafted.any():
            return
        position = np.arange(int(outcome.confidence.shape[1]))
        accepted = position < outcome.accepted[:, None]
        first_rejected = (outcome.accepted < outcome.drafted) & ~outcome.truncated
        judged = accepted | ((position == outcome.accepted[:, None]) & first_rejected[:, None])
        self._confidence = np.concatenate([self._confidence, outcome.confidence[judged]])[-self._window :]
        self._accepted = np.concatenate([self._accepted, accepted[judged]])[-self._window :]
        if len(self._accepted) >= MIN_PAIRS and self._accepted.any() and not self._accepted.all():
            self.threshold = best_threshold(self._confidence, self._accepted)


def best_threshold(confidence: FloatArray, accepted: BoolArray) -> float:
    """Threshold of least cost on the ROC curve: false positive rate + 3 · false negative rate.

    Candidates are the confidences seen; a token passes where its own is at least the threshold. Of equal costs the
    highest threshold wins.
    """
    order = np.argsort(-confidence, kind="stable")
    ranked, hits = confidence[order], accepted[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # the last of each run of equal confidences
    true_rate = np.cumsum(hits)[ends] / hits.sum()
    false_rate = np.cumsum(~hits)[ends] / (~hits).sum()
    return float(ranked[ends][np.argmin(false_rate + MISSED_COST * (1.0 - true_rate))])
