"""A linear model with non-negative weights, learnt from a stream of measurements.

Recursive least squares on relative errors, with two departures from the textbook:

* **Directional forgetting**: old measurements are forgotten only in the direction that a new one excites, so that a
  server which repeats the same step keeps what it knows of other steps (Bittanti, Bolzern, Campi: "Recursive
  least-squares identification algorithms with incomplete excitation", IEEE TAC 35(12), 1990).
* **Non-negative weights**: an update stops where the first weight reaches 0, fixes that weight at 0, and continues with
  the gain of the remaining weights given that. Clipping alone would be wrong: the other weights would have risen to
  compensate for a decrease that clipping takes back, and one measurement of a large step would spoil the predictions
  for small ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray
from turbospec.runtime.kernels import compiled

MEMORY_STEPS = 200.0
"""Updates after which a measurement has lost most of its weight, in the directions that the updates excite."""
FORGETTING = 1.0 - 1.0 / MEMORY_STEPS
"""Share of the information that is kept per update, in the direction that the update excites."""
OUTLIER_SIGMAS = 4.0
"""Standard deviations to which a single error is limited, and beyond which a running mean of errors shows a change."""
ROUNDING = 1e-9
"""A variance that a subtraction leaves below this share of itself is set to 0."""
LEAST_NOISE = 1e-8
"""Lower bound of the squared noise, as a share of the variance of the prediction. No measurement reduces a variance to
less than this share, so that P stays positive in double precision."""


class Regression(NamedTuple):
    """State of an `OnlineRegression`; the arrays are updated in place."""

    weights: FloatArray
    """(p,) w, each at least 0."""
    covariance: FloatArray
    """(p, p) P, of the weights."""
    noise: FloatArray
    """(1,) σ, the standard deviation of the relative error."""


class OnlineRegression:
    """Linear model y ≈ x·w with w ≥ 0, fitted to relative errors: a step of 10 ms weighs as much as one of 100 ms.

    Args:
        weights: (p,) initial weights.
        variance: (p,) or (p, p) their covariance, in squared units of the weights.
    """

    def __init__(self, weights: FloatArray, variance: FloatArray) -> None:
        self.state = Regression(
            weights=np.maximum(weights, 0.0),
            covariance=np.array(np.diag(variance) if variance.ndim == 1 else variance, dtype=np.float64),
            noise=np.array([0.15]),
        )

    @property
    def weights(self) -> FloatArray:
        """(p,) the present weights."""
        return self.state.weights

    @property
    def covariance(self) -> FloatArray:
        """(p, p) their covariance."""
        return self.state.covariance

    def refit(self, weights: FloatArray, scaled_features: FloatArray, noise_deviation: float) -> None:
        """Replace the weights by those of an offline fit, and add its information to the covariance.

        Args:
            weights: (p,) fitted weights.
            scaled_features: (m, p) features of the fit's samples, each divided by the scale of its relative error.
            noise_deviation: standard deviation of the relative error.
        """
        # (P⁻¹ + XᵀX / σ²)⁻¹ with P = L Lᵀ. In this form it has no negative variance whatever the sizes of features.
        prior = np.linalg.cholesky(self.state.covariance)
        whitened = scaled_features @ prior / noise_deviation
        information, directions = np.linalg.eigh(whitened.T @ whitened)
        half = prior @ directions / np.sqrt(1.0 + np.maximum(information, 0.0))
        self.state.weights[:] = weights
        self.state.noise[0] = noise_deviation
        self.state.covariance[:] = half @ half.T

    def learn(self, features: FloatArray, target: float) -> None:
        """Take in one measurement of (p,) features; a `target` at or below 0 is ignored."""
        if target > 0.0:
            learn_online(self.state, features, target)

    def predict(self, features: FloatArray) -> FloatArray:
        """(…,) predictions for (…, p) features, never negative for non-negative features."""
        return features @ self.state.weights


@compiled
def times(symmetric: FloatArray, vector: FloatArray) -> FloatArray:
    """(p,) product of a symmetric (p, p) matrix and a (p,) vector of which most are 0.

    Plain loops, row by row: for two dozen features a call into BLAS takes longer than the product.
    """
    out = np.zeros(len(vector))
    for j in range(len(vector)):
        if vector[j] != 0.0:
            for i in range(len(vector)):
                out[i] += symmetric[j, i] * vector[j]
    return out


@compiled
def relative_error(regression: Regression, features: FloatArray, target: float) -> tuple[float, float]:
    """The relative error of a prediction, and the standard deviation that is expected of it."""
    predicted = _dot(features, regression.weights)
    scale = max(target, predicted, 1e-9)
    variance = max(_dot(features, times(regression.covariance, features)), 0.0) / (scale * scale)
    return (target - predicted) / scale, np.sqrt(regression.noise[0] ** 2 + variance)


@compiled
def learn_online(regression: Regression, features: FloatArray, target: float) -> None:
    """Update a regression, in place, by one measurement.

    Args:
        regression: the state.
        features: (p,) x.
        target: y, above 0.
    """
    weights, covariance, noise = regression.weights, regression.covariance, regression.noise
    size = len(weights)
    predicted = _dot(features, weights)
    # Relative to the larger of the two, so that neither a stall nor a wild prediction gets undue weight.
    scale = max(target, predicted, 1e-9)
    error = (target - predicted) / scale
    scaled = features / scale
    free, gain = covariance.copy(), times(covariance, scaled)
    _fix_at_zero(weights, free, gain, scaled, error)
    variance = _dot(scaled, gain)
    noise_variance = max(noise[0] ** 2, LEAST_NOISE * variance)
    sigma = np.sqrt(noise_variance + variance)
    error = min(max(error, -OUTLIER_SIGMAS * sigma), OUTLIER_SIGMAS * sigma)
    # For normal errors σ = √(π/2)·E|error| ≈ 1.25·E|error|.
    noise_after = min(max(0.98 * noise[0] + 0.02 * abs(error) * 1.25, 0.01), 0.5)
    for _ in range(size):
        denominator = noise_variance + variance
        # The largest fraction of the update that leaves every weight at or above 0.
        fraction, first = 1.0, -1
        for i in range(size):
            change = gain[i] * error / denominator
            if weights[i] + fraction * change < 0.0:
                fraction, first = weights[i] / -change, i
        for i in range(size):
            weights[i] = max(weights[i] + fraction * gain[i] * error / denominator, 0.0)
        if first < 0:
            break
        weights[first] = 0.0
        error *= 1.0 - fraction
        _fix_at_zero(weights, free, gain, scaled, error)
        variance = _dot(scaled, gain)
    # Directional forgetting: P⁻¹ loses a share 1 / MEMORY_STEPS of itself along x alone, then gains x xᵀ / σ². The gain
    # is bounded by the noise, so that a repeated direction keeps a memory of MEMORY_STEPS steps. One step
    # forgets no more than its share, or a stall, whose x is tiny relative to its duration, would erase the direction.
    denominator = noise_variance + variance
    variance_after = variance * noise_variance / denominator
    most = min((1.0 - FORGETTING) * noise_variance, variance / FORGETTING)
    change = -1.0 / denominator
    if 1e-12 < variance_after < most:
        change += (noise_variance / denominator) ** 2 * (most - variance_after) / variance_after**2
    for i in range(size):
        for j in range(size):
            covariance[i, j] += gain[i] * gain[j] * change
    noise[0] = noise_after


@compiled
def _fix_at_zero(
    weights: FloatArray, covariance: FloatArray, gain: FloatArray, scaled: FloatArray, error: float
) -> None:
    """Condition the covariance and the gain on weights that are 0 and would become negative."""
    size = len(weights)
    changed = True
    while changed:
        changed = False
        for i in range(size):
            if weights[i] <= 0.0 and gain[i] * error < 0.0 and covariance[i, i] > 0.0:
                column = covariance[:, i] / np.sqrt(covariance[i, i])
                for j in range(size):
                    for k in range(size):
                        covariance[j, k] -= column[j] * column[k]
                for j in range(size):
                    # What is left of a variance that weight i determines is rounding, at times below 0.
                    if covariance[j, j] <= ROUNDING * column[j] ** 2:
                        covariance[j, :] = 0.0
                        covariance[:, j] = 0.0
                gain[:] = times(covariance, scaled)
                gain[i] = 0.0
                changed = True


@compiled
def _dot(left: FloatArray, right: FloatArray) -> float:
    total = 0.0
    for i in range(len(left)):
        total += left[i] * right[i]
    return total
