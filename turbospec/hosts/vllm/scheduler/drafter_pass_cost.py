"""How long the drafter's passes take, learnt from those that a worker has timed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.models.online_regression import OnlineRegression

WEIGHTS = np.array([1.5e-3, 2e-5, 1e-5])
"""Seconds of a pass, of a draft token and of another token in it, before the first measurement."""
DEVIATIONS = np.array([1e-2, 1e-4, 1e-4])


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


class DrafterPassCost:
    """Predicts a pass that catches up drafter KV lag."""

    def __init__(self) -> None:
        OnlineRegression(np.ones(1), np.ones(1)).learn(np.ones(1), 1.0)  # compiles
        self._model = OnlineRegression(WEIGHTS, DEVIATIONS**2)

    def learn(self, passes: DrafterPasses, seconds: float) -> None:
        """Learn from the passes of a step and their measured duration."""
        self._model.learn(np.array(passes[:3], np.float64), seconds)

    def catch_up_seconds(self, tokens: int) -> float:
        """Predicted duration of a pass over this many tokens of KV lag."""
        per_pass, _, per_token = self._model.weights.tolist()
        return per_pass + per_token * tokens

    def catch_up_tokens(self, seconds: float) -> int:
        """Tokens of KV lag that a pass of this predicted duration computes, 0 or more."""
        per_pass, _, per_token = self._model.weights.tolist()
        return int(max(seconds - per_pass, 0.0) / max(per_token, 1e-12))
