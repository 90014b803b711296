"""What part of a step's time its drafting took, learnt from whole steps.

A scheduler sees when a step was given to the device and when its tokens came back, and nothing in between. Steps that
verify and draft different numbers of tokens tell the two apart: one regression over both parts, of which each step's
time is then shared out in proportion.
"""

from __future__ import annotations

import numpy as np

from turbospec.compiled import compiled
from turbospec.latency import LatencyModel, step_features
from turbospec.online_regression import OnlineRegression, learn_online
from turbospec.types import FloatArray

MOST_DRAFTING = 0.95
"""Of a step's time: the target's pass is never free, whatever the first few steps seem to say."""


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
        self.draft_seconds(0.0, 1, 0, 0, 0)  # teaches nothing; compiled now, and not in the first step

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
        model = self._model
        return float(
            _learn_and_share_out(
                model.weights, model.covariance, model.noise, model.forgetting, self._verify_size, step_seconds,
                float(tokens), float(context_tokens), float(passes), float(rows),
            )
        )  # fmt: skip


@compiled
def _learn_and_share_out(
    weights: FloatArray,
    covariance: FloatArray,
    noise: FloatArray,
    forgetting: float,
    verify_size: int,
    step_seconds: float,
    tokens: float,
    context_tokens: float,
    passes: float,
    rows: float,
) -> float:
    row = np.zeros(len(weights))
    row[:verify_size] = step_features(tokens, context_tokens)
    row[verify_size], row[verify_size + 1] = passes, rows
    if step_seconds > 0.0:
        learn_online(weights, covariance, noise, row, step_seconds, forgetting)
    if passes == 0.0:
        return 0.0
    whole = draft = 0.0
    for i in range(len(row)):
        part = row[i] * weights[i]
        whole += part
        if i >= verify_size:
            draft += part
    return step_seconds * min(draft / whole, MOST_DRAFTING) if whole > 0.0 else 0.0
