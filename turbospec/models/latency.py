"""Step time: fitted offline from a profile, corrected online, and usable without any profile.

    T = host + draft + verify

* verify: piecewise linear in the tokens of the target's pass, with a slope of its own (never negative) between powers
  of two, plus a term for the KV that attention reads. The constant is the memory-bound floor and the last slopes are
  the compute-bound ones; a step of the curve at a CUDA graph's size appears as one steep segment. Added to it: a
  constant and a time per prompt token for passes with prefill, which replay no full CUDA graph and attend within the
  prompt; and a constant for a pass that unequal draft lengths kept from replaying one.
* draft: affine in the passes, their rows, the KV they read and the tokens of drafter KV lag caught up.
* host: affine in the requests.

Offline each part is a non-negative least squares fit of relative errors; online each part is corrected after every step
(`online_regression`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, StepOutcome
from turbospec.models.non_negative import non_negative_fit
from turbospec.models.online_regression import OnlineRegression, Regression, learn_online
from turbospec.models.profile import LatencySample
from turbospec.runtime.kernels import compiled, unnamed

VERIFY_KNOTS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, np.inf])
"""Tokens in the target's pass at which the slope may change."""
MIN_OBSERVATIONS = 4
"""Measured steps, and measured steps with drafts, that a model without a profile needs before it is used."""


class StepMeasurement(NamedTuple):
    """What one step did and how long its parts took; units as in a `StepOutcome`."""

    draft_passes: int
    draft_rows: int
    """Rows summed over the passes."""
    draft_context_tokens: int
    catch_up_tokens: int
    tokens_batched: int
    context_tokens: int
    requests: int
    draft_seconds: float
    verify_seconds: float
    host_seconds: float
    piecewise: float
    """1 for `StepOutcome.piecewise`, else 0."""
    prefill_tokens: int


def verify_features(tokens: FloatArray, context_tokens: FloatArray) -> FloatArray:
    """Features of target passes: 1, the KV tokens read, and the tokens in each segment between the knots.

    Args:
        tokens: (…,) tokens in each pass.
        context_tokens: (…,) KV tokens that it attends to.

    Returns:
        (…, 2 + segments)
    """
    low, high = VERIFY_KNOTS[:-1], VERIFY_KNOTS[1:]
    segments = np.clip(tokens[..., None] - low, 0.0, high - low)
    return np.concatenate([np.ones_like(segments[..., :1]), context_tokens[..., None], segments], axis=-1)


@compiled
def step_features(tokens: float, context_tokens: float, prefill_tokens: float, piecewise: float) -> FloatArray:
    """(5 + segments,) `verify_features` of one pass, then whether it has prefill tokens (1 or 0), their number, and
    whether it ran `piecewise` (1 or 0).

    One compiled loop instead of a dozen array operations.
    """
    row = np.zeros(len(VERIFY_KNOTS) + 4)
    row[0], row[1] = 1.0, context_tokens
    row[-3], row[-2], row[-1] = min(prefill_tokens, 1.0), prefill_tokens, piecewise
    for segment in range(len(VERIFY_KNOTS) - 1):
        low, high = VERIFY_KNOTS[segment], VERIFY_KNOTS[segment + 1]
        row[segment + 2] = min(max(tokens - low, 0.0), high - low)
    return row


@compiled
def _learn_step(verify: Regression, draft: Regression, host: Regression, step: StepMeasurement) -> None:
    """Update all three regressions in one call: entering compiled code takes longer than the update itself."""
    verify, draft, host, step = Regression(*verify), Regression(*draft), Regression(*host), StepMeasurement(*step)
    if step.verify_seconds > 0.0:
        row = step_features(
            float(step.tokens_batched), float(step.context_tokens), float(step.prefill_tokens), step.piecewise
        )
        learn_online(verify, row, step.verify_seconds)
    if step.draft_passes and step.draft_seconds > 0.0:
        row = np.array([1.0, step.draft_passes, step.draft_rows, step.draft_context_tokens, step.catch_up_tokens])
        learn_online(draft, row, step.draft_seconds)
    if step.host_seconds > 0.0:
        row = np.array([1.0, step.requests])
        learn_online(host, row, step.host_seconds)


@compiled
def _curve(slopes: FloatArray, floor: float, base_tokens: int, extra_tokens: int) -> FloatArray:
    """(extra + 1,) `verify_features @ weights` for consecutive token counts from `base_tokens`, without the matrix."""
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

    Without a profile it starts from a guess, and the first steps set the scale; `calibrated` says whether enough steps
    have been measured to plan with. `fit` builds a model from a profile.
    """

    def __init__(self) -> None:
        segments = len(VERIFY_KNOTS) - 1
        verify = np.concatenate([[8e-3, 1e-8], np.full(segments, 4e-5), np.zeros(3)])
        # Slopes of neighbouring segments are similar: one shared uncertainty, and a smaller one of each segment.
        variance = np.zeros((len(verify), len(verify)))
        variance[0, 0], variance[1, 1] = 5e-2**2, 1e-7**2
        variance[-3:, -3:] = np.diag([5e-3**2, 1e-4**2, 5e-3**2])
        variance[2:-3, 2:-3] = 1e-4**2 + np.diag(np.full(segments, 5e-5**2))
        # From one token to two a pass changes from matrix-vector to matrix-matrix products, which may cost much more.
        variance[2, 2] += 3e-3**2
        self.verify = OnlineRegression(verify, variance)
        self.draft = _unknown_draft_costs()
        self.host = OnlineRegression(np.array([5e-4, 2e-5]), np.array([5e-3, 2e-4]) ** 2)
        self.verify_observations = 0
        """Steps measured."""
        self.draft_observations = 0
        """Steps with drafts measured."""
        self.fitted = False
        """Whether the model was fitted to a profile and its draft costs have not been reset since."""
        self._no_draft_reference: tuple[FloatArray, float] | None = None
        """Of the last step with drafts: its features without drafts, and the longest time predicted for these since."""

    @classmethod
    def fit(cls, samples: Sequence[LatencySample]) -> LatencyModel:
        """Fit all parts to measured steps by non-negative least squares of relative errors.

        Args:
            samples: at least one.

        Raises:
            ValueError: there are no samples.
        """
        if not samples:
            raise ValueError("no samples to fit a latency model to")
        model = cls()
        model._fit_part(model.verify, np.stack([_pass_features(s) for s in samples]), column(samples, "verify_seconds"))
        drafted = [sample for sample in samples if sample.draft_rows]
        if drafted:
            model._fit_part(
                model.draft, np.stack([draft_features(s) for s in drafted]), column(drafted, "draft_seconds")
            )
        host = np.array([max(s.step_seconds - s.draft_seconds - s.verify_seconds, 0.0) for s in samples])
        model._fit_part(model.host, np.stack([host_features(s) for s in samples]), host)
        model.verify_observations, model.draft_observations = len(samples), len(drafted)
        model.fitted = True
        return model

    @staticmethod
    def _fit_part(part: OnlineRegression, features: FloatArray, seconds: FloatArray) -> None:
        weight = relative_weights(seconds)
        scaled = features * weight[:, None]
        fitted = non_negative_fit(scaled, seconds * weight)
        # Features that no sample excites keep their initial weight: a weight of 0 would make those tokens free.
        excited = np.abs(features).max(axis=0) > 0.0
        residual = (seconds - features @ fitted) * weight
        # The median absolute deviation of normal errors is σ / 1.4826.
        noise_deviation = float(np.clip(1.4826 * np.median(np.abs(residual)), 0.02, 0.5))
        part.refit(np.where(excited, fitted, part.weights), scaled, noise_deviation)

    @property
    def calibrated(self) -> bool:
        """Whether enough steps, with and without drafts, have been measured to plan with."""
        return self.fitted or (
            self.verify_observations >= MIN_OBSERVATIONS and self.draft_observations >= MIN_OBSERVATIONS
        )

    def learn(self, step: LatencySample | StepOutcome, requests: int) -> None:
        """Correct the model by one measured step.

        Args:
            step: the measurement. The `reused_plan_steps` of a `StepOutcome` are learnt from too.
            requests: requests in the step, those in prefill included.
        """
        rows = step.draft_rows if isinstance(step.draft_rows, tuple) else step.draft_rows.tolist()
        verify = self.verify
        measurement = StepMeasurement(
            draft_passes=len(rows),
            draft_rows=sum(rows),
            draft_context_tokens=step.draft_context_tokens,
            catch_up_tokens=step.catch_up_tokens,
            tokens_batched=step.tokens_batched,
            context_tokens=step.context_tokens,
            requests=requests,
            draft_seconds=step.draft_seconds,
            verify_seconds=step.verify_seconds,
            host_seconds=step.step_seconds - step.draft_seconds - step.verify_seconds,
            piecewise=float(isinstance(step, StepOutcome) and step.piecewise),
            prefill_tokens=step.prefill_tokens,
        )
        _learn_step(unnamed(verify.state), unnamed(self.draft.state), unnamed(self.host.state), unnamed(measurement))
        self.verify_observations += 1
        if isinstance(step, StepOutcome) and step.reused_plan_steps:
            tokens, seconds = (
                step.reused_plan_tokens / step.reused_plan_steps,
                step.reused_plan_seconds / step.reused_plan_steps,
            )
            verify.learn(
                step_features(tokens, float(step.context_tokens), 0.0, 0.0), seconds - self.host_seconds(requests)
            )
        # There may be drafts without a drafter pass of their own: see `StepView.first_pass_every_step`.
        if rows or (isinstance(step, StepOutcome) and step.drafted.any()):
            self.draft_observations += 1
            features = step_features(float(requests), float(step.context_tokens), 0.0, 0.0)
            self._no_draft_reference = features, float(verify.predict(features))
        elif self._no_draft_reference is not None:
            # The model may still have been adapting to slower hardware when it last saw a draft.
            features, longest = self._no_draft_reference
            self._no_draft_reference = features, max(longest, float(verify.predict(features)))

    @property
    def no_draft_time_ratio(self) -> float:
        """Predicted time of a step without drafts, now over the longest since a step with drafts was last measured.

        Below 1: the hardware has become faster since, and the draft costs may be outdated. 1 if nothing was drafted.
        """
        if self._no_draft_reference is None:
            return 1.0
        features, seconds = self._no_draft_reference
        return float(self.verify.predict(features)) / max(seconds, 1e-9)

    def forget_draft_costs(self) -> None:
        """Reset the draft costs to the initial guess; the model is then no longer `calibrated`."""
        self.draft, self.draft_observations, self.fitted = _unknown_draft_costs(), 0, False

    def verify_curve(
        self, base_tokens: int, extra_tokens: int, context_tokens: float, requests: int, prefill_tokens: int = 0
    ) -> FloatArray:
        """Host and verify seconds of a step, by the number of its draft tokens.

        Args:
            base_tokens: tokens in the target's pass without any draft token, at least 1.
            extra_tokens: largest number of draft tokens.
            context_tokens: KV tokens that the pass attends to.
            requests: requests in the step.
            prefill_tokens: prompt tokens among the base tokens.

        Returns:
            (extra + 1,) seconds with 0 … `extra_tokens` draft tokens; not decreasing.
        """
        weights = self.verify.weights
        floor = weights[0] + weights[1] * context_tokens
        floor += weights[-3] * min(prefill_tokens, 1) + weights[-2] * prefill_tokens
        return _curve(weights[2:-3], float(floor) + self.host_seconds(requests), base_tokens, extra_tokens)

    @property
    def piecewise_seconds(self) -> float:
        """Seconds that a step takes longer if unequal draft lengths keep it from replaying a full CUDA graph."""
        return float(self.verify.weights[-1])

    def host_seconds(self, requests: int) -> float:
        """Host work of a step, seconds."""
        fixed, per_request = self.host.weights.tolist()
        return fixed + per_request * requests

    def draft_costs(self, context_per_row: float) -> tuple[float, float, float]:
        """Draft costs in seconds: fixed per step with drafts, per pass, and per row of a pass.

        Args:
            context_per_row: KV tokens that a row reads.
        """
        per_step, per_pass, per_row, per_context_token, _ = self.draft.weights.tolist()
        return per_step, per_pass, per_row + per_context_token * context_per_row

    @property
    def catch_up_token_seconds(self) -> float:
        """Seconds per token of drafter KV lag that a drafter pass catches up."""
        return float(self.draft.weights[4])

    def predict_sample(self, sample: LatencySample) -> float:
        """Predicted duration of a measured step, in seconds."""
        draft = float(self.draft.predict(draft_features(sample))) if sample.draft_rows else 0.0
        return draft + float(self.verify.predict(_pass_features(sample))) + self.host_seconds(_requests(sample))


def _unknown_draft_costs() -> OnlineRegression:
    return OnlineRegression(np.array([2e-4, 1.5e-3, 2e-5, 1e-8, 1e-5]), np.array([1e-3, 1e-2, 1e-4, 1e-7, 1e-4]) ** 2)


def _requests(sample: LatencySample) -> int:
    """Decoding requests of a step, estimated: the rows of its first drafter pass, or one per decode token."""
    return sample.draft_rows[0] if sample.draft_rows else max(1, sample.tokens_batched - sample.prefill_tokens)


def _pass_features(step: LatencySample | StepOutcome) -> FloatArray:
    return step_features(float(step.tokens_batched), float(step.context_tokens), float(step.prefill_tokens), 0.0)


def draft_features(step: LatencySample | StepOutcome) -> FloatArray:
    """(5,) features of a step's drafting: 1, passes, rows, KV tokens read, tokens caught up."""
    rows = step.draft_rows
    return np.array([1.0, len(rows), sum(rows), step.draft_context_tokens, step.catch_up_tokens], np.float64)


def host_features(sample: LatencySample) -> FloatArray:
    """(2,) features of a step's host work: 1, requests."""
    return np.array([1.0, float(_requests(sample))])


def relative_weights(seconds: FloatArray) -> FloatArray:
    """(n,) weights that turn a least squares fit to n durations into one of relative errors.

    The weights of durations below a tenth of the median are bounded.
    """
    return 1.0 / np.maximum(seconds, max(float(np.median(seconds)) * 0.1, 1e-6))


def column(samples: Sequence[LatencySample], name: str) -> FloatArray:
    """(n,) one field, by name, of n samples."""
    return np.array([getattr(sample, name) for sample in samples], np.float64)
