"""A linear model without negative weights, learnt from a stream.

Recursive least squares of relative errors, with three departures from the textbook:

* **Directional forgetting**: only what a measurement's own features excite is forgotten, so that a server that always
  runs the same step does not lose what it knew of the others (Bittanti, Bolzern, Campi: "Recursive least-squares
  identification algorithms with incomplete excitation", IEEE TAC 35(12), 1990).
* **An adaptive response rate**: errors that go one way are a machine that has become another, and no noise; the more
  they do, the faster is forgotten (Trigg, Leach: "Exponential smoothing with an adaptive response rate", Operational
  Research Quarterly 18, 1967).
* **No weight is negative.** An update goes as far as the first weight comes to 0, holds it there, and goes on with the
  gain that the others have given that. Were it only cut off, those that rise to make up for its fall would rise for
  nothing, and one measurement of a large step would spoil what is known of the small ones.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import FloatArray
from turbospec.runtime.kernels import compiled

OUTLIER_SIGMAS = 4.0
RECENT = 0.05
"""Weight of the newest in the means of the last errors."""
HASTE = 10.0
"""Times as fast is forgotten where all errors go one way."""


class OnlineRegression:
    """Linear model y ≈ x·w with w ≥ 0.

    Works on relative errors: a step of 10 ms and one of 100 ms teach alike.

    Args:
        weights: (p,) where to start.
        variance: (p,) or (p, p) how far off the start may be, in squared units of the weights.
        forgetting: information kept from one update to the next, in the direction that the update excites.
    """

    def __init__(self, weights: FloatArray, variance: FloatArray, *, forgetting: float = 0.995) -> None:
        self.weights = np.maximum(weights, 0.0)
        self.covariance = np.array(np.diag(variance) if variance.ndim == 1 else variance, dtype=np.float64)
        self.forgetting = forgetting
        self.noise = np.array([0.15, 0.0, 0.15])
        """Of the relative error, learnt: its standard deviation, and the means of the last and of their sizes."""

    def learn(self, features: FloatArray, target: float) -> None:
        """Take in one measurement; `target` at or below 0 is ignored."""
        if target > 0.0:
            learn_online(self.weights, self.covariance, self.noise, features, target, self.forgetting)

    def predict(self, features: FloatArray) -> FloatArray:
        """(…,) predictions for (…, p) features, never negative for non-negative features."""
        return features @ self.weights


@compiled
def _times(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    # Plain loops: a dozen features are too few to be worth a call into BLAS.
    out = np.zeros(len(vector))
    for i in range(len(vector)):
        for j in range(len(vector)):
            out[i] += matrix[i, j] * vector[j]
    return out


@compiled
def learn_online(
    weights: FloatArray,
    covariance: FloatArray,
    noise: FloatArray,
    features: FloatArray,
    target: float,
    forgetting: float,
) -> None:
    size = len(weights)
    predicted = _dot(features, weights)
    # Measured against the larger of the two, so that neither a stall nor a wild prediction gets undue weight.
    scale = max(target, predicted, 1e-9)
    error = (target - predicted) / scale
    seen = features / scale
    free, gain = covariance.copy(), _times(covariance, seen)
    _hold_at_zero(weights, free, gain, seen, error)
    spread = _dot(seen, gain)
    sigma = np.sqrt(noise[0] ** 2 + spread)
    error = min(max(error, -OUTLIER_SIGMAS * sigma), OUTLIER_SIGMAS * sigma)
    noise_after = min(max(0.98 * noise[0] + 0.02 * abs(error) * 1.25, 0.01), 0.5)
    noise[1] += RECENT * (error - noise[1])
    noise[2] += RECENT * (abs(error) - noise[2])
    one_way = (noise[1] / max(noise[2], 1e-9)) ** 2
    for _ in range(size):
        denominator = noise[0] ** 2 + spread
        way, first = 1.0, -1
        for i in range(size):
            change = gain[i] * error / denominator
            if weights[i] + way * change < 0.0:
                way, first = weights[i] / -change, i
        for i in range(size):
            weights[i] = max(weights[i] + way * gain[i] * error / denominator, 0.0)
        if first < 0:
            break
        weights[first] = 0.0
        error *= 1.0 - way
        _hold_at_zero(weights, free, gain, seen, error)
        spread = _dot(seen, gain)
    # Directional forgetting: P⁻¹ loses (1 − λ) of itself along x alone, then gains x xᵀ / σ². The gain is bounded by
    # the noise so that a direction which repeats keeps a memory of 1 / (1 − λ) steps.
    denominator = noise[0] ** 2 + spread
    spread_after = spread * noise[0] ** 2 / denominator
    floor = (1.0 - forgetting) * (1.0 + (HASTE - 1.0) * one_way) * noise[0] ** 2
    change = -1.0 / denominator
    if 1e-12 < spread_after < floor:
        change += (noise[0] ** 2 / denominator) ** 2 * (floor - spread_after) / spread_after**2
    for i in range(size):
        for j in range(size):
            covariance[i, j] += gain[i] * gain[j] * change
    noise[0] = noise_after


@compiled
def _hold_at_zero(
    weights: FloatArray, covariance: FloatArray, gain: FloatArray, seen: FloatArray, error: float
) -> None:
    """Take weights at 0 that would go below it as known: the covariance and the gain are given them."""
    size = len(weights)
    held = True
    while held:
        held = False
        for i in range(size):
            if weights[i] <= 0.0 and gain[i] * error < 0.0 and covariance[i, i] > 0.0:
                column = covariance[:, i] / np.sqrt(covariance[i, i])
                for j in range(size):
                    for k in range(size):
                        covariance[j, k] -= column[j] * column[k]
                covariance[i, :] = 0.0
                covariance[:, i] = 0.0
                gain[:] = _times(covariance, seen)
                gain[i] = 0.0
                held = True


@compiled
def _dot(left: FloatArray, right: FloatArray) -> float:
    total = 0.0
    for i in range(len(left)):
        total += left[i] * right[i]
    return total
