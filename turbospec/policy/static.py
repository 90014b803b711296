"""The two policies that never change their mind: `off`, and `static`, the same draft length always."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import PolicyConfig


class OffConfig(PolicyConfig):
    """Never speculate."""

    policy: Literal["off"]

    def build(self, profile: Profile | None, seed: int) -> StaticPolicy:
        return StaticPolicy(0)


class StaticConfig(PolicyConfig):
    """The same draft length for every request in every step."""

    policy: Literal["static"]
    draft_length: int = Field(ge=0)
    """Tokens to draft for each request; the engine's limits still apply."""

    def build(self, profile: Profile | None, seed: int) -> StaticPolicy:
        return StaticPolicy(self.draft_length)


class StaticPolicy:
    """Drafts `draft_length` tokens for every request, always."""

    def __init__(self, draft_length: int) -> None:
        self.draft_length = draft_length
        self._reason = f"static {draft_length}" if draft_length else "off"

    def plan(self, view: StepView) -> StepPlan:
        return StepPlan(np.minimum(self.draft_length, view.draft_limits), reason=self._reason)

    def observe(self, outcome: StepOutcome) -> None:
        """A static policy learns nothing."""
