"""A policy of your own: drafts a little more than what the requests accepted recently."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from turbospec import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy import PolicyConfig


class MyPolicyConfig(PolicyConfig):
    """The average number of accepted draft tokens and a margin, the same for every request."""

    policy: Literal["my_package.my_policy"]
    margin: float = Field(default=1.0, ge=0)
    """Tokens drafted beyond the average number of accepted ones."""
    weight: float = Field(default=0.2, gt=0, le=1)
    """Weight of the newest step in the moving average."""

    def build(self, profile: Profile | None, seed: int) -> MyPolicy:
        return MyPolicy(self)


class MyPolicy:
    """Keeps a moving average of accepted draft tokens per request."""

    def __init__(self, config: MyPolicyConfig) -> None:
        self._config = config
        self._accepted = 1.0

    def plan(self, view: StepView) -> StepPlan:
        length = round(self._accepted + self._config.margin)
        reason = f"my_policy: {length} at {self._accepted:.2f} accepted"
        return StepPlan(np.minimum(length, view.draft_limits), reason=reason)

    def observe(self, outcome: StepOutcome) -> None:
        # A truncated draft says nothing about the positions after its accepted tokens.
        complete = (outcome.drafted > 0) & ~outcome.truncated
        if complete.any():
            accepted = float(outcome.accepted[complete].mean())
            self._accepted += self._config.weight * (accepted - self._accepted)
