"""What part of a step's time its drafting took, learnt from whole steps.

A scheduler sees when a step was given to the device and when its tokens came back, and nothing in between. Steps that
verify and draft different numbers of tokens tell the two apart: one regression over both parts, of which each step's
time is then shared out in proportion.
"""

from __future__ import annotations

import numpy as np

from turbospec.latency import LatencyModel, OnlineRegression, verify_features
from turbospec.types import FloatArray


class StepSplit:
    """Shares out step times between the target's pass and the drafter's passes."""

    def __init__(self) -> None:
        verify = LatencyModel().verify
        passes = np.array([1.5e-3, 2e-5])
        size, verify_size = len(verify.weights) + len(passes), len(verify.weights)
        variance = np.zeros((size, size))
        variance[:verify_size, :verify_size] = verify.covariance
        variance[verify_size:, verify_size:] = np.diag(np.array([1e-2, 1e-4]) ** 2)
        self._model = OnlineRegression(np.concatenate([verify.weights, passes]), variance)
        self._verify_size = verify_size

    def draft_seconds(self, step_seconds: float, tokens: int, context_tokens: int, passes: int, rows: int) -> float:
        """Learn from one step and share out its time.

        Args:
            step_seconds: the whole step.
            tokens: in the target's pass.
            context_tokens: KV tokens that it attends to.
            passes: drafter passes that not every step has.
            rows: tokens in them.

        Returns:
            Seconds of those passes, 0 where there were none; the rest is the target's, sampling and host work included.
        """
        row = np.concatenate(
            [
                verify_features(np.array([tokens], np.float64), np.array([context_tokens], np.float64))[0],
                np.array([passes, rows], np.float64),
            ]
        )
        self._model.learn(row, step_seconds)
        if passes == 0:
            return 0.0
        parts: FloatArray = row * np.maximum(self._model.weights, 0.0)
        whole = float(parts.sum())
        return step_seconds * float(parts[self._verify_size :].sum()) / whole if whole > 0.0 else 0.0
