"""`confidence`: stops drafting after the first token of low drafter confidence, as in Hugging Face transformers.

The gate works in engines that report confidence while they draft: the embedded engine, and simulated drafters with
`calls_gate`. In vLLM this policy drafts the maximum in every step.

Source: transformers 5, `assistant_confidence_threshold` (generation/candidate_generator.py,
`AssistedCandidateGenerator.update_candidate_strategy`; generation/stopping_criteria.py, `ConfidenceCriteria`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import BoolArray, FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import CEILING, PolicyConfig

MIN_PAIRS = 6
"""Fewest observed tokens to refit to, with at least one accepted and one rejected among them."""
FALSE_NEGATIVE_COST = 3.0
"""Cost of stopping before a token that would be accepted, relative to drafting a rejected one (75 % to 25 %)."""


class ConfidenceConfig(PolicyConfig):
    """Drafts up to the engine's maximum and ends a draft after the first token below the confidence threshold.

    Needs an engine that reports drafter confidence, as the embedded engine does. Elsewhere it drafts the maximum.
    """

    policy: Literal["confidence"]
    threshold: float = Field(default=0.4, gt=0, lt=1)
    """A token of lower probability ends the draft. Refitted online once enough tokens were observed."""
    window: int = Field(default=512, ge=MIN_PAIRS, le=10_000, json_schema_extra=CEILING)
    """Number of latest observed tokens that the threshold is refitted to."""

    def build(self, profile: Profile | None, seed: int) -> ConfidencePolicy:
        return ConfidencePolicy(self.threshold, self.window)


class ConfidenceGate:
    """Ends a draft after its first token below the threshold; that token is still verified.

    The gate sees the largest probability of the draft distribution. At temperature 0 this is the probability of the
    drafted token, which transformers uses. When sampling, only the maximum may be used without bias (see `DraftGate`).
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        return np.ones(len(rows), np.bool_), confidence >= self._threshold


class ConfidencePolicy:
    """Refits the threshold after every step to the latest observed tokens of all requests.

    Observed are the accepted tokens of a draft and its first rejected one; those after it are unknown.
    Transformers serves one request at a time, keeps the threshold from one request to the next, and refits it to the
    tokens of the running request. In a batch, the latest `window` tokens of all requests take their place. Without
    confidence from the engine nothing is learnt and every draft has the maximum length.
    """

    def __init__(self, threshold: float, window: int) -> None:
        self.threshold = threshold
        self._window = window
        self._confidence = np.zeros(0)
        self._accepted = np.zeros(0, np.bool_)

    def plan(self, view: StepView) -> StepPlan:
        reason = f"confidence: draft until confidence < {self.threshold:.2f}"
        return StepPlan(view.draft_limits.copy(), reason=reason, gate=ConfidenceGate(self.threshold))

    def observe(self, outcome: StepOutcome) -> None:
        if outcome.confidence is None or not outcome.drafted.any():
            return
        position = np.arange(int(outcome.confidence.shape[1]))
        accepted = position < outcome.accepted[:, None]
        first_rejected = (outcome.accepted < outcome.drafted) & ~outcome.truncated
        observed = accepted | ((position == outcome.accepted[:, None]) & first_rejected[:, None])
        self._confidence = np.concatenate([self._confidence, outcome.confidence[observed]])[-self._window :]
        self._accepted = np.concatenate([self._accepted, accepted[observed]])[-self._window :]
        if len(self._accepted) >= MIN_PAIRS and self._accepted.any() and not self._accepted.all():
            self.threshold = best_threshold(self._confidence, self._accepted)


def best_threshold(confidence: FloatArray, accepted: BoolArray) -> float:
    """The threshold of lowest cost on the ROC curve: false positive rate + 3 · false negative rate.

    Candidates are the confidences in the sample; a token passes if its confidence is at least the threshold. Among
    equal costs the highest threshold wins.

    Args:
        confidence: (n,) confidence of each observed token.
        accepted: (n,) whether it was accepted; at least one was, and at least one was not.
    """
    order = np.argsort(-confidence, kind="stable")
    ranked, hits = confidence[order], accepted[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # last index of each group of equal confidences
    true_rate = np.cumsum(hits)[ends] / hits.sum()
    false_rate = np.cumsum(~hits)[ends] / (~hits).sum()
    return float(ranked[ends][np.argmin(false_rate + FALSE_NEGATIVE_COST * (1.0 - true_rate))])
