"""The two policies with a constant draft length: `off` (K = 0) and `static`."""

from __future__ import annotations

from typing import Literal

from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import DraftLength, PolicyConfig


class OffConfig(PolicyConfig):
    """K = 0 always: no speculation."""

    policy: Literal["off"]

    def build(self, profile: Profile | None, seed: int) -> StaticPolicy:
        return StaticPolicy(0)


class StaticConfig(PolicyConfig):
    """The same draft length for every request in every step."""

    policy: Literal["static"]
    draft_length: DraftLength
    """Draft tokens per request, within the engine's limits."""

    def build(self, profile: Profile | None, seed: int) -> StaticPolicy:
        return StaticPolicy(self.draft_length)


class StaticPolicy:
    """Drafts `draft_length` tokens for every request in every step."""

    def __init__(self, draft_length: int) -> None:
        self.draft_length = draft_length
        self._reason = f"static: K = {draft_length}" if draft_length else "off"

    def plan(self, view: StepView) -> StepPlan:
        return StepPlan.same_length(view, self.draft_length, self._reason)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
