"""What a step costs: fitted offline from a profile, corrected online, and usable with no profile at all.

    T = host + draft + verify

* verify: piecewise linear in the tokens of the target's pass, with a slope that is free to differ (and only ever
  non-negative) between powers of two, plus a term for the KV that attention reads. The constant is the memory-bound
  floor, the last slopes the compute-bound ones; a step at a graph's size shows as one steep segment.
* draft: affine in the passes, their rows, the KV they read and the stale tokens caught up.
* host: affine in the requests.

Offline each part is a non-negative least squares fit of relative errors; online each is corrected step by step
(`online_regression`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from turbospec.interface import FloatArray, StepOutcome
from turbospec.models.online_regression import OnlineRegression, learn_online
from turbospec.models.profile import LatencySample
from turbospec.runtime.kernels import compiled

VERIFY_KNOTS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, np.inf])
"""Tokens in the target's pass at which the slope may change."""


def verify_features(tokens: FloatArray, context_tokens: FloatArray) -> FloatArray:
    """(…, 2 + segments): the floor, the KV read, and the tokens' share in each segment between the knots."""
    low, high = VERIFY_KNOTS[:-1], VERIFY_KNOTS[1:]
    segments = np.clip(tokens[..., None] - low, 0.0, high - low)
    return np.concatenate([np.ones_like(segments[..., :1]), context_tokens[..., None], segments], axis=-1)


@compiled
def step_features(tokens: float, context_tokens: float) -> FloatArray:
    """`verify_features` of one step, without the cost of a dozen array operations."""
    row = np.zeros(len(VERIFY_KNOTS) + 1)
    row[0], row[1] = 1.0, context_tokens
    for segment in range(len(VERIFY_KNOTS) - 1):
        low, high = VERIFY_KNOTS[segment], VERIFY_KNOTS[segment + 1]
        row[segment + 2] = min(max(tokens - low, 0.0), high - low)
    return row


@compiled
def _learn_step(
    verify: FloatArray,
    verify_covariance: FloatArray,
    verify_noise: FloatArray,
    draft: FloatArray,
    draft_covariance: FloatArray,
    draft_noise: FloatArray,
    host: FloatArray,
    host_covariance: FloatArray,
    host_noise: FloatArray,
    forgetting: float,
    passes: int,
    rows: int,
    draft_context_tokens: int,
    catch_up_tokens: int,
    tokens: int,
    context_tokens: int,
    requests: int,
    draft_seconds: float,
    verify_seconds: float,
    host_seconds: float,
) -> None:
    """All three regressions in one call: entering compiled code costs more than what is computed there."""
    if verify_seconds > 0.0:
        row = step_features(float(tokens), float(context_tokens))
        learn_online(verify, verify_covariance, verify_noise, row, verify_seconds, forgetting)
    if passes and draft_seconds > 0.0:
        row = np.array([1.0, passes, rows, draft_context_tokens, catch_up_tokens])
        learn_online(draft, draft_covariance, draft_noise, row, draft_seconds, forgetting)
    if host_seconds > 0.0:
        row = np.array([1.0, requests])
        learn_online(host, host_covariance, host_noise, row, host_seconds, forgetting)


@compiled
def _curve(slopes: FloatArray, floor: float, base_tokens: int, extra_tokens: int) -> FloatArray:
    """The same as `verify_features @ weights` for runs of consecutive token counts, without the matrix."""
    seconds = np.full(extra_tokens + 1, floor)
    last, value = len(slopes) - 1, floor
    for segment in range(last + 1):
        low, slope = int(VERIFY_KNOTS[segment]), slopes[segment]
        high = int(VERIFY_KNOTS[segment + 1]) if segment < last else base_tokens + extra_tokens
        for extra in range(max(low + 1 - base_tokens, 0), min(high - base_tokens, extra_tokens) + 1):
            seconds[extra] = value + slope * (base_tokens + extra - low)
        value += slope * (high - low)
    return seconds


class LatencyModel:
    """Predicts the parts of a step's time, in seconds.

    Without a profile it starts from a guess whose scale the first steps set; `calibrated` says when its draft and
    verify costs have been seen enough to be planned with.
    """

    def __init__(self) -> None:
        segments = len(VERIFY_KNOTS) - 1
        verify = np.concatenate([[8e-3, 1e-8], np.full(segments, 4e-5)])
        # Slopes of neighbouring segments are alike: one shared uncertainty and a smaller one for each.
        variance = np.zeros((len(verify), len(verify)))
        variance[0, 0], variance[1, 1] = 5e-2**2, 1e-7**2
        variance[2:, 2:] = 1e-4**2 + np.diag(np.full(segments, 5e-5**2))
        # From one token to two a pass turns from matrix-vector to matrix-matrix products: that step may be large.
        variance[2, 2] += 3e-3**2
        self.verify = OnlineRegression(verify, variance)
        self.draft = _unknown_draft_costs()
        self.host = OnlineRegression(np.array([5e-4, 2e-5]), np.array([5e-3, 2e-4]) ** 2)
        self.verify_observations = 0
        self.draft_observations = 0
        self.fitted = False
        self._when_drafted: tuple[FloatArray, float] | None = None
        """A step without drafts instead of the last that had some: its features, and what it would have taken."""

    @classmethod
    def fit(cls, samples: Sequence[LatencySample]) -> LatencyModel:
        """Fit all parts to measured steps by non-negative least squares of relative errors.

        Raises:
            ValueError: there are no samples.
        """
        if not samples:
            raise ValueError("no samples to fit a latency model to")
        model = cls()
        model._fit_part(model.verify, np.stack([_verify_row(s) for s in samples]), column(samples, "verify_seconds"))
        drafted = [sample for sample in samples if sample.draft_rows]
        if drafted:
            model._fit_part(model.draft, np.stack([draft_row(s) for s in drafted]), column(drafted, "draft_seconds"))
        host = np.array([max(s.step_seconds - s.draft_seconds - s.verify_seconds, 0.0) for s in samples])
        model._fit_part(model.host, np.stack([host_row(s) for s in samples]), host)
        model.verify_observations, model.draft_observations = len(samples), len(drafted)
        model.fitted = True
        return model

    @staticmethod
    def _fit_part(part: OnlineRegression, features: FloatArray, seconds: FloatArray) -> None:
        weight = relative_weights(seconds)
        scaled = features * weight[:, None]
        fitted, _ = nnls(scaled, seconds * weight)
        # Columns the samples never excite keep the start's value: zero would promise free tokens there.
        seen = np.abs(features).max(axis=0) > 0.0
        part.weights = np.where(seen, fitted, part.weights)
        residual = (seconds - features @ fitted) * weight
        part.noise[0] = float(np.clip(1.4826 * np.median(np.abs(residual)), 0.02, 0.5))
        information = scaled.T @ scaled / part.noise[0] ** 2
        part.covariance = np.linalg.inv(information + np.linalg.inv(part.covariance))

    @property
    def calibrated(self) -> bool:
        """Whether both a plain step and a drafting one have been seen often enough to plan with."""
        return self.fitted or (self.verify_observations >= 4 and self.draft_observations >= 4)

    def learn(self, step: LatencySample | StepOutcome, requests: int) -> None:
        """Correct the model by one measured step of `requests` requests."""
        rows = step.draft_rows if isinstance(step.draft_rows, tuple) else step.draft_rows.tolist()
        verify, draft, host = self.verify, self.draft, self.host
        _learn_step(
            verify.weights, verify.covariance, verify.noise, draft.weights, draft.covariance, draft.noise,
            host.weights, host.covariance, host.noise, verify.forgetting,
            len(rows), sum(rows), step.draft_context_tokens, step.catch_up_tokens, step.tokens_batched,
            step.context_tokens, requests, step.draft_seconds, step.verify_seconds,
            step.step_seconds - step.draft_seconds - step.verify_seconds,
        )  # fmt: skip
        self.verify_observations += 1
        if isinstance(step, StepOutcome) and step.reused_plan_steps:
            tokens, seconds = (
                step.reused_plan_tokens / step.reused_plan_steps,
                step.reused_plan_seconds / step.reused_plan_steps,
            )
            verify.learn(step_features(tokens, float(step.context_tokens)), seconds - self.host_seconds(requests))
        # Drafts may come without a pass of their own: see `StepView.first_pass_every_step`.
        if rows or (isinstance(step, StepOutcome) and step.drafted.any()):
            self.draft_observations += 1
            plain = step_features(float(requests), float(step.context_tokens))
            self._when_drafted = plain, float(verify.predict(plain))

    @property
    def pace(self) -> float:
        """Times as long as when a draft was last measured that a step without drafts takes now; 1 if none was."""
        if self._when_drafted is None:
            return 1.0
        plain, seconds = self._when_drafted
        return float(self.verify.predict(plain)) / max(seconds, 1e-9)

    def forget_draft_costs(self) -> None:
        """Take what drafting costs as not known: no longer `calibrated`."""
        self.draft, self.draft_observations, self.fitted = _unknown_draft_costs(), 0, False

    def verify_curve(self, base_tokens: int, extra_tokens: int, context_tokens: float, requests: int) -> FloatArray:
        """(extra + 1,) host and verify seconds with 0 … extra draft tokens on top of `base_tokens`; not decreasing."""
        weights = self.verify.weights
        floor = float(weights[0] + weights[1] * context_tokens)
        return _curve(weights[2:], floor + self.host_seconds(requests), base_tokens, extra_tokens)

    def host_seconds(self, requests: int) -> float:
        fixed, each = self.host.weights.tolist()
        return fixed + each * requests

    def draft_costs(self, context_per_row: float) -> tuple[float, float, float]:
        """Seconds of a drafting's start, of each pass, and of each row of a pass at this context."""
        start, each_pass, row, context, _ = self.draft.weights.tolist()
        return start, each_pass, row + context * context_per_row

    @property
    def catch_up_token_seconds(self) -> float:
        """Seconds for each stale token that a drafter pass catches up."""
        return float(self.draft.weights[4])

    def predict_sample(self, sample: LatencySample) -> float:
        """Seconds that the model expects of a measured step, drafting included."""
        draft = float(self.draft.predict(draft_row(sample))) if sample.draft_rows else 0.0
        return draft + float(self.verify.predict(_verify_row(sample))) + self.host_seconds(_requests(sample))


def _unknown_draft_costs() -> OnlineRegression:
    return OnlineRegression(np.array([2e-4, 1.5e-3, 2e-5, 1e-8, 1e-5]), np.array([1e-3, 1e-2, 1e-4, 1e-7, 1e-4]) ** 2)


def _requests(sample: LatencySample) -> int:
    """The decoding requests, as far as a sample tells: those of its first draft pass, or a token each."""
    return sample.draft_rows[0] if sample.draft_rows else max(1, sample.tokens_batched - sample.prefill_tokens)


def _verify_row(step: LatencySample | StepOutcome) -> FloatArray:
    return step_features(float(step.tokens_batched), float(step.context_tokens))


def draft_row(step: LatencySample | StepOutcome) -> FloatArray:
    """(5,) features of a step's drafting."""
    rows = step.draft_rows
    return np.array([1.0, len(rows), sum(rows), step.draft_context_tokens, step.catch_up_tokens], np.float64)


def host_row(sample: LatencySample) -> FloatArray:
    """(2,) features of a step's host work."""
    return np.array([1.0, float(_requests(sample))])


def relative_weights(seconds: FloatArray) -> FloatArray:
    """(n,) weights by which a least squares fit to n times is one of relative errors, those of the shortest bounded."""
    return 1.0 / np.maximum(seconds, max(float(np.median(seconds)) * 0.1, 1e-6))


def column(samples: Sequence[LatencySample], name: str) -> FloatArray:
    """(n,) one field of n samples."""
    return np.array([getattr(sample, name) for sample in samples], np.float64)
