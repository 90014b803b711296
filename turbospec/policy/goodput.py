"""`goodput`: the draft length of highest predicted tokens per second, as in the SmartSpec paper (arXiv 2406.14066).

The acceptance rate α is a moving average over the whole server. A draft of k tokens is predicted to emit
1 + α + ... + α^k = (1 - α^(k+1)) / (1 - α) tokens. A pass of either model takes a·context + b·batched tokens + c
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.errors import UserError
from turbospec.interface import MIN_STEP_SECONDS, FloatArray, IntArray, StepOutcome, StepPlan, StepView
from turbospec.models.latency import relative_weights
from turbospec.models.non_negative import non_negative_fit
from turbospec.models.profile import LatencySample, Profile
from turbospec.policy.config import CEILING, PolicyConfig

MAX_SAMPLES = 4096
"""Most steps kept for fitting the latency model online."""


class GoodputConfig(PolicyConfig):
    """One draft length for the whole batch: the one of highest predicted goodput, K = 0 included."""

    policy: Literal["goodput"]
    initial_acceptance: float = Field(default=0.7, ge=0, le=1)
    """Acceptance rate before the first observation (0.7 in the authors' code)."""
    acceptance_weight: float = Field(default=0.15, gt=0, le=1)
    """Weight of the newest step in the moving average of the acceptance rate (0.15 in the authors' code)."""
    warmup_steps: int = Field(default=64, ge=1, le=MAX_SAMPLES, json_schema_extra=CEILING)
    """Without a profile: number of first steps that cycle through all draft lengths, to fit the latency model."""

    def build(self, profile: Profile | None, seed: int) -> GoodputPolicy:
        if profile is None:
            return GoodputPolicy(self, None)
        if not any(sample.draft_rows for sample in profile.samples):
            raise UserError("goodput: no step of the profile drafted; make a new one with `turbospec profile`")
        return GoodputPolicy(self, PassTimes.fit(profile.samples))


class GoodputPolicy:
    """Scans all draft lengths for the best ratio of predicted tokens to predicted seconds.

    The paper fits its latency model offline. Without a profile this policy fits it to its own first `warmup_steps`
    steps, and again whenever their number has doubled, up to 4,096. It does not probe: at K = 0 no acceptance is
    observed, and drafting resumes only if the load changes.
    """

    def __init__(self, config: GoodputConfig, times: PassTimes | None) -> None:
        self.acceptance = config.initial_acceptance
        self.times = times
        self._weight = config.acceptance_weight
        self._offline = times is not None
        self._samples: list[LatencySample] = []
        self._next_fit = config.warmup_steps

    def plan(self, view: StepView) -> StepPlan:
        candidates = np.arange(view.max_draft + 1)
        if self.times is None:
            length = len(self._samples) % len(candidates)
            return StepPlan.same_length(view, length, f"goodput: warm-up, K = {length}")
        tokens = self._expected_tokens(view, candidates)
        seconds = self.times.predict(view, candidates)
        best = int(np.argmax(tokens / np.maximum(seconds, MIN_STEP_SECONDS)))
        plan = StepPlan.same_length(view, best, f"goodput: K = {best} at acceptance rate {self.acceptance:.2f}")
        plan.predicted_tokens, plan.predicted_seconds = float(tokens[best]), float(seconds[best])
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        if not self._offline:
            self._learn_times(outcome)
        # A draft is verified up to its first rejection; positions after it are unobserved. So α is estimated as
        # accepted / (accepted + observed rejections). accepted / drafted would count the unobserved positions as
        # rejections: at α = 0.8 and K = 7 it gives 0.45.
        accepted = int(outcome.accepted.sum())
        rejected = int(((outcome.accepted < outcome.drafted) & ~outcome.truncated).sum())
        if accepted + rejected > 0:
            self.acceptance += self._weight * (accepted / (accepted + rejected) - self.acceptance)

    def _expected_tokens(self, view: StepView, candidates: IntArray) -> FloatArray:
        """(candidates,) predicted tokens emitted by the decoding requests, for each draft length."""
        by_length = np.cumsum(self.acceptance**candidates)  # 1 + α + ... + α^k
        limits = view.draft_limits[view.decoding]
        return by_length[np.minimum(candidates[:, None], limits)].sum(axis=1)

    def _learn_times(self, outcome: StepOutcome) -> None:
        if len(self._samples) == MAX_SAMPLES or outcome.step_seconds == 0.0:
            return
        self._samples.append(LatencySample.from_outcome(outcome))
        if len(self._samples) == self._next_fit:
            self.times = PassTimes.fit(self._samples)
            self._next_fit *= 2


class PassTimes:
    """Seconds of a drafter pass and of the rest of the step, each linear in context tokens and batched tokens.

    Args:
        draft: (3,) seconds per context token, per batched token and per pass of the drafter.
        target: (3,) the same for the rest of the step.
    """

    def __init__(self, draft: FloatArray, target: FloatArray) -> None:
        self.draft = draft
        self.target = target

    @classmethod
    def fit(cls, samples: Sequence[LatencySample]) -> PassTimes:
        """Non-negative least squares of relative errors, so that one slow step, as the first of a cold engine, does not
        set the costs. Everything except drafting counts as the target's: verify, prefill, host time.

        Where no step's drafting was measured, one fit of whole steps gives both.
        """
        drafts = [(s.draft_context_tokens, sum(s.draft_rows) + s.catch_up_tokens, len(s.draft_rows)) for s in samples]
        targets = [(s.context_tokens, s.tokens_batched, 1) for s in samples]
        measured = [number for number, sample in enumerate(samples) if sample.shows_drafting]
        if samples and not measured:
            rows = [(*draft, *target) for draft, target in zip(drafts, targets, strict=True)]
            both = _non_negative_fit(rows, [sample.step_seconds for sample in samples])
            return cls(draft=both[:3], target=both[3:])
        return cls(
            draft=_non_negative_fit(
                [drafts[number] for number in measured], [samples[number].draft_seconds for number in measured]
            ),
            target=_non_negative_fit(targets, [sample.step_seconds - sample.draft_seconds for sample in samples]),
        )

    def predict(self, view: StepView, candidates: IntArray) -> FloatArray:
        """(candidates,) predicted seconds of the step, for each draft length of the whole batch."""
        lengths = np.minimum(candidates[:, None], view.draft_limits)  # (candidate, request)
        passes = np.minimum(lengths, 1) if view.parallel_drafter else lengths
        if view.first_pass_every_step:  # it is part of every step's time, so no draft length is charged for it
            passes = np.maximum(passes - 1, 0)
        if view.batch_drafter:
            passes = np.broadcast_to(passes.max(axis=1, initial=0, keepdims=True), passes.shape)
        in_one_pass = view.parallel_drafter and not view.batch_drafter
        rows = lengths * passes if in_one_pass else passes
        draft = np.column_stack([passes @ view.context_tokens, rows.sum(axis=1), passes.max(axis=1, initial=0)])
        batched = int(np.count_nonzero(view.decoding)) + view.prefill_tokens + lengths.sum(axis=1)
        context = np.full(len(candidates), view.context_tokens.sum())
        target = np.column_stack([context, batched, np.ones(len(candidates))])
        return draft @ self.draft + target @ self.target


def _non_negative_fit(features: Sequence[tuple[int, ...]], seconds: Sequence[float]) -> FloatArray:
    """Coefficients of non-negative least squares; three times 0 without samples."""
    if not features:
        return np.zeros(3)
    matrix, values = np.array(features, np.float64), np.array(seconds)
    weights = relative_weights(values)
    scale = np.maximum(matrix.max(axis=0), 1.0)  # context tokens are thousands of times larger than the constant
    return non_negative_fit(matrix / scale * weights[:, None], values * weights) / scale
