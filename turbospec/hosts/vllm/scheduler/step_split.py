"""Splits a step's time into drafting and the rest, by what whole steps have taken.

Where the worker measures both parts, the regression learns each by itself, and only predicts what catching up takes.
Elsewhere a scheduler sees when a step starts and when its tokens return, and nothing in between: one regression
predicts both parts, and each step's time is split in proportion. It cannot tell them apart as long as tokens and passes
rise together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray
from turbospec.models.latency import LatencyModel, step_features
from turbospec.models.online_regression import OnlineRegression, Regression, learn_online
from turbospec.runtime.kernels import compiled

MOST_DRAFTING = 0.95
"""Largest share of a step's time that counts as drafting: the target's pass is never free."""


class DrafterPasses(NamedTuple):
    """Drafter passes of a step, without a first pass that every step has."""

    number: int = 0
    rows: int = 0
    """Draft tokens sampled in them, used or not; sampling is most of a token's cost for a small drafter."""
    other_tokens: int = 0
    """Other tokens in the first of them: verified drafts, prompt tokens and KV lag."""
    catch_up_tokens: int = 0
    """Of these, prompt tokens and KV lag."""


NO_PASSES = DrafterPasses()


class TargetPass(NamedTuple):
    """The target's pass of a step."""

    tokens: int
    context_tokens: int
    """KV tokens that it attends to."""
    prefill_tokens: int = 0
    piecewise: bool = False
    """As in a `StepOutcome`."""


class StepSplit:
    """Splits step times between the target's pass and the drafter's passes."""

    def __init__(self) -> None:
        verify = LatencyModel().verify
        passes = np.array([1.5e-3, 2e-5, 1e-5])
        size, verify_size = len(verify.weights) + len(passes), len(verify.weights)
        variance = np.zeros((size, size))
        variance[:verify_size, :verify_size] = verify.covariance
        variance[verify_size:, verify_size:] = np.diag(np.array([1e-2, 1e-4, 1e-4]) ** 2)
        self._model = OnlineRegression(np.concatenate([verify.weights, passes]), variance)
        self._verify_size = verify_size
        self.draft_seconds(0.0, TargetPass(1, 0), NO_PASSES, NO_PASSES)  # compiles; teaches nothing

    def draft_seconds(
        self, step_seconds: float, target: TargetPass, late: DrafterPasses, own: DrafterPasses
    ) -> tuple[float, float]:
        """Learn from one step and split its time.

        Args:
            step_seconds: the whole step.
            target: the target's pass.
            late: passes of the step before that ran in this step's time.
            own: passes of this step that ran in its time.

        Returns:
            Seconds of the late passes and of its own, 0 where there were none; the rest is the target's pass, sampling
            and host work.
        """
        model = self._model
        return _learn_and_split(
            *model.state, self._verify_size, step_seconds,
            np.array(target, np.float64), np.array([late[:3], own[:3]], np.float64),
        )  # fmt: skip

    def learn_target(self, target: TargetPass, seconds: float) -> None:
        """Learn from a measured target pass."""
        row = np.zeros(len(self._model.weights))
        row[: self._verify_size] = step_features(
            float(target.tokens), float(target.context_tokens), float(target.prefill_tokens), float(target.piecewise)
        )
        self._model.learn(row, seconds)

    def learn_drafting(self, passes: DrafterPasses, seconds: float) -> None:
        """Learn from measured drafter passes."""
        row = np.zeros(len(self._model.weights))
        row[self._verify_size :] = passes[:3]
        self._model.learn(row, seconds)

    def catch_up_seconds(self, tokens: int) -> float:
        """Predicted duration of a drafter pass over this many tokens of KV lag."""
        per_pass, per_token = self._catch_up_costs()
        return per_pass + per_token * tokens

    def catch_up_tokens(self, seconds: float) -> int:
        """Tokens of KV lag that a drafter pass of this predicted duration computes, 0 or more."""
        per_pass, per_token = self._catch_up_costs()
        return int(max(seconds - per_pass, 0.0) / max(per_token, 1e-12))

    def _catch_up_costs(self) -> tuple[float, float]:
        """Seconds of a drafter pass, and of each token of KV lag in it; 0 or more."""
        per_pass, _, per_token = self._model.weights[self._verify_size :].tolist()
        return max(per_pass, 0.0), max(per_token, 0.0)


@compiled
def _learn_and_split(
    weights: FloatArray,
    covariance: FloatArray,
    noise: FloatArray,
    forgetting: float,
    verify_size: int,
    step_seconds: float,
    target: FloatArray,
    passes: FloatArray,
) -> tuple[float, float]:
    row = np.zeros(len(weights))
    row[:verify_size] = step_features(target[0], target[1], target[2], target[3])
    row[verify_size:] = passes[0] + passes[1]
    if step_seconds > 0.0:
        learn_online(Regression(weights, covariance, noise, forgetting), row, step_seconds)
    if row[verify_size] == 0.0:
        return 0.0, 0.0
    verify = (row[:verify_size] * weights[:verify_size]).sum()
    late = max((passes[0] * weights[verify_size:]).sum(), 0.0)
    own = max((passes[1] * weights[verify_size:]).sum(), 0.0)
    draft = late + own
    if draft == 0.0 or verify + draft <= 0.0:
        return 0.0, 0.0
    seconds = step_seconds * min(draft / (verify + draft), MOST_DRAFTING)
    return seconds * late / draft, seconds * own / draft
