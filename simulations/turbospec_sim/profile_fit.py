"""Coefficients of simulated step times, fitted to measured steps.

The controller's latency model has one cost for all tokens of the target's pass, because it decides about drafts only. A
simulation also needs the cost of prompt tokens, which is lower: no token is sampled after them, and under top-p
sampling takes longer than computing a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turbospec.interface import FloatArray
from turbospec.models.latency import (
    VERIFY_KNOTS,
    LatencyModel,
    column,
    draft_features,
    host_features,
    relative_weights,
    verify_features,
)
from turbospec.models.non_negative import non_negative_fit
from turbospec.models.profile import LatencySample

DRAFT = ("draft_start", "draft_pass", "draft_row", "draft_kv_token", "catch_up_token")
HOST = ("host", "host_request")


def fitted_coefficients(samples: Sequence[LatencySample]) -> tuple[FloatArray, dict[str, float]]:
    """Fit the parts of a step's time to measured steps.

    Each part is fitted by non-negative least squares of relative errors. With noise such a fit lies below the mean; it
    is scaled to the mean, because the duration of a run depends on the mean.

    Args:
        samples: at least one.

    Returns:
        The curve of the target's pass and the other coefficients, by the names of `StepTimes`.
    """
    model = LatencyModel.fit(samples)
    curve, verify = _verify(samples)
    drafted = [sample for sample in samples if sample.shows_drafting]
    draft = model.draft.weights
    if drafted:
        draft = draft * _to_mean(_rows(draft_features, drafted) @ draft, column(drafted, "draft_seconds"))
    host = model.host.weights
    rest = column(samples, "step_seconds") - column(samples, "draft_seconds") - column(samples, "verify_seconds")
    host = host * _to_mean(_rows(host_features, samples) @ host, np.maximum(rest, 0.0))
    return curve, verify | dict(zip((*DRAFT, *HOST), [*draft.tolist(), *host.tolist()], strict=True))


def predicted_seconds(
    samples: Sequence[LatencySample], curve: FloatArray, coefficients: dict[str, float]
) -> FloatArray:
    """(n,) predicted seconds of n measured steps."""
    tokens = column(samples, "tokens_batched")
    slope = (curve[1, -1] - curve[1, -2]) / (curve[0, -1] - curve[0, -2])
    seconds = np.interp(tokens, *curve) + slope * np.maximum(tokens - curve[0, -1], 0.0)
    seconds += coefficients["kv_token"] * column(samples, "context_tokens")
    seconds += coefficients["sampled_token"] * (tokens - column(samples, "prefill_tokens"))
    drafting = np.array([len(sample.draft_rows) > 0 for sample in samples])
    seconds += drafting * (_rows(draft_features, samples) @ np.array([coefficients[name] for name in DRAFT]))
    return seconds + _rows(host_features, samples) @ np.array([coefficients[name] for name in HOST])


def first_pass_seconds(samples: Sequence[LatencySample], coefficients: dict[str, float]) -> FloatArray:
    """(n,) predicted seconds of a drafter pass that is part of each step, of one row for each request."""
    requests = _rows(host_features, samples)[:, 1]  # older profiles do not have the number itself
    seconds = coefficients["draft_pass"] + coefficients["draft_row"] * requests
    seconds += coefficients["draft_kv_token"] * column(samples, "context_tokens")
    return seconds + coefficients["catch_up_token"] * column(samples, "prefill_tokens")


def _verify(samples: Sequence[LatencySample]) -> tuple[FloatArray, dict[str, float]]:
    tokens, seconds = column(samples, "tokens_batched"), column(samples, "verify_seconds")
    prompts = column(samples, "prefill_tokens")
    # Without prompts, the costs of sampling and of computing a token cannot be told apart.
    sampled = tokens - prompts if prompts.any() else np.zeros(len(samples))
    features = np.column_stack([verify_features(tokens, column(samples, "context_tokens")), sampled])
    weight = relative_weights(seconds)
    fitted = non_negative_fit(features * weight[:, None], seconds * weight)
    fitted *= _to_mean(features @ fitted, seconds)
    # Columns that are 0 in all samples keep the latency model's prior: a coefficient of 0 would make those tokens free.
    guess = np.append(LatencyModel().verify.weights[: features.shape[1] - 1], 0.0)
    floor, kv_token, *slopes, sampled_token = np.where(np.abs(features).max(axis=0) > 0.0, fitted, guess).tolist()
    knots = np.array([0.0, *VERIFY_KNOTS[:-1], 2.0 * VERIFY_KNOTS[-2]])
    curve = np.array([knots, np.concatenate([[floor, floor], floor + np.cumsum(slopes * np.diff(knots[1:]))])])
    return curve, {"kv_token": kv_token, "sampled_token": sampled_token}


def _to_mean(predicted: FloatArray, measured: FloatArray) -> float:
    known = predicted > 0.0
    return float((measured[known] / predicted[known]).mean()) if known.any() else 1.0


def _rows(features: Callable[[LatencySample], FloatArray], samples: Sequence[LatencySample]) -> FloatArray:
    return np.stack([features(sample) for sample in samples])
