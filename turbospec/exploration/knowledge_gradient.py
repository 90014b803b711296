"""What an experiment is worth: one rule for first steps, probes while drafting is off and comparisons while it is on.

A plan, the target, is estimated to gain d tokens per step more than the best plan, where d is negative. A step that
runs an experiment changes that estimate by a random amount with a standard deviation s. If the target thereby becomes
the best plan, the next `horizon` steps gain. The experiment is worth

    horizon · (E[max(d + s·Z, 0)] − max(d, 0))  −  the tokens that it loses,       Z standard normal

the knowledge gradient with correlated beliefs (Frazier, Powell, Dayanik, INFORMS Journal on Computing 21, 2009). For
step times, s = λ · |δᵀ P φ| / √(φᵀ P φ + σ²T²): P is the covariance of the cost weights, δ the difference of the two
plans' features, φ the experiment's features and σ the noise of step times.
"""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray
from turbospec.models.online_regression import times
from turbospec.models.step_cost import SIZE
from turbospec.runtime.kernels import compiled


@compiled
def improvement(difference: float, deviation: float) -> float:
    """E[max(d + s·Z, 0)] − max(d, 0) for a standard normal Z."""
    if deviation <= 0.0:
        return 0.0
    z = min(abs(difference) / deviation, 40.0)  # it is the same for -d, and 0 from there on
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return deviation * (density - z * 0.5 * math.erfc(z / math.sqrt(2)))


@compiled
def learnt_seconds(
    covariance: FloatArray, noise_seconds: float, tried: FloatArray, target: FloatArray, best: FloatArray
) -> float:
    """s / λ: the standard deviation by which one step moves the estimated difference of two plans' durations.

    Args:
        covariance: (SIZE, SIZE) P.
        noise_seconds: σT of the step.
        tried: (SIZE,) φ, features of the step.
        target, best: (SIZE,) features of the two plans.
    """
    moved, difference, own = times(covariance, tried), 0.0, 0.0
    for i in range(SIZE):
        own += tried[i] * moved[i]
        difference += (target[i] - best[i]) * moved[i]
    # Rounding may leave φᵀPφ a little below 0.
    return abs(difference) / np.sqrt(max(own, 0.0) + noise_seconds * noise_seconds)
