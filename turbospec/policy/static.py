"""The two policies with a constant draft length: `off` (K = 0) and `static`."""

from __future__ import annotations

from typing import Literal

from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import DraftLength, PolicyConfig

OFF_STEPS = 100
"""Steps on one plan without drafts: a second or two, so that metrics and a changed policy file wait no longer."""


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
        plan = StepPlan.same_length(view, self.draft_length, self._reason)
        if self.draft_length == 0:
            plan.valid_steps = OFF_STEPS
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
