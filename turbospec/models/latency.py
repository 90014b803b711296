"""Step time, fitted offline to a profile: where `turbospec.models.step_cost` starts from.

    T = host + draft + verify

* verify: piecewise linear in the tokens of the target's pass, with a slope of its own (never negative) between powers
  of two, plus a term for the KV that attention reads. The constant is the memory-bound floor and the last slopes are
  the compute-bound ones; a step of the curve at a CUDA graph's size appears as one steep segment. Added to it: a
  constant and a time per prompt token for passes with prefill, which replay no full CUDA graph and attend within the
  prompt; and constants for a pass that unequal draft lengths kept from replaying one, and for a pass that is too large
  for any graph. A profile says nothing about these two.
* draft: affine in the passes, their rows, the KV they read and the tokens of drafter KV lag caught up.
* host: affine in the requests.

Each part is a non-negative least squares fit of relative errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec.interface import FloatArray
from turbospec.models.non_negative import non_negative_fit
from turbospec.models.online_regression import OnlineRegression
from turbospec.models.profile import LatencySample

VERIFY_KNOTS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, np.inf])
"""Tokens in the target's pass at which the slope may change."""


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


def step_features(tokens: float, context_tokens: float, prefill_tokens: float) -> FloatArray:
    """(6 + segments,) `verify_features` of one pass, then whether it has prefill tokens (1 or 0), their number, and two
    zeros: it ran with the CUDA graphs that there are."""
    prefill = [min(prefill_tokens, 1.0), prefill_tokens, 0.0, 0.0]
    return np.concatenate([verify_features(np.array(tokens), np.array(context_tokens)), prefill])


class LatencyModel:
    """Predicts the parts of a step's time, in seconds.

    A new model is a guess. `fit` builds one from a profile.
    """

    def __init__(self) -> None:
        segments = len(VERIFY_KNOTS) - 1
        verify = np.concatenate([[8e-3, 1e-8], np.full(segments, 4e-5), np.zeros(4)])
        # Slopes of neighbouring segments are similar: one shared uncertainty, and a smaller one of each segment.
        variance = np.zeros((len(verify), len(verify)))
        variance[0, 0], variance[1, 1] = 5e-2**2, 1e-7**2
        variance[-4:, -4:] = np.diag([5e-3**2, 1e-4**2, 5e-3**2, 1e-2**2])
        variance[2:-4, 2:-4] = 1e-4**2 + np.diag(np.full(segments, 5e-5**2))
        # From one token to two a pass changes from matrix-vector to matrix-matrix products, which may cost much more.
        variance[2, 2] += 3e-3**2
        self.verify = OnlineRegression(verify, variance)
        self.draft = _unknown_draft_costs()
        self.host = OnlineRegression(np.array([5e-4, 2e-5]), np.array([5e-3, 2e-4]) ** 2)

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
        drafted = [sample for sample in samples if sample.shows_drafting]
        if drafted:
            model._fit_part(
                model.draft, np.stack([draft_features(s) for s in drafted]), column(drafted, "draft_seconds")
            )
        host = np.array([max(s.step_seconds - s.draft_seconds - s.verify_seconds, 0.0) for s in samples])
        model._fit_part(model.host, np.stack([host_features(s) for s in samples]), host)
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

    def predict_sample(self, sample: LatencySample) -> float:
        """Predicted duration of a measured step, in seconds."""
        draft = float(self.draft.predict(draft_features(sample))) if sample.draft_rows else 0.0
        host = float(self.host.predict(host_features(sample)))
        return draft + float(self.verify.predict(_pass_features(sample))) + host


def _unknown_draft_costs() -> OnlineRegression:
    return OnlineRegression(np.array([2e-4, 1.5e-3, 2e-5, 1e-8, 1e-5]), np.array([1e-3, 1e-2, 1e-4, 1e-7, 1e-4]) ** 2)


def _requests(sample: LatencySample) -> int:
    """Requests of a step; where they are not known, the rows of its first drafter pass, or one per decode token."""
    if sample.requests is not None:
        return sample.requests
    return sample.draft_rows[0] if sample.draft_rows else max(1, sample.tokens_batched - sample.prefill_tokens)


def _pass_features(step: LatencySample) -> FloatArray:
    return step_features(float(step.tokens_batched), float(step.context_tokens), float(step.prefill_tokens))


def draft_features(step: LatencySample) -> FloatArray:
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
