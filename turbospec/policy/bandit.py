"""`bandit`: learns by trial which draft length emits the most tokens per second, separately for each batch size.

One bandit per batch size, as in Nightjar (arXiv 2512.22420), but per power of two, so that each learns from enough
steps. Arms are chosen by discounted UCB (Garivier and Moulines, arXiv 0805.3415), which forgets and so follows change.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import CEILING, DraftLengths, PolicyConfig
from turbospec.runtime.plans_in_flight import PlansInFlight


class BanditConfig(PolicyConfig):
    """Discounted UCB over draft lengths, one bandit per power of two of the batch size."""

    policy: Literal["bandit"]
    draft_lengths: DraftLengths = (0, 1, 2, 3, 5, 8, 15)
    """The arms: draft lengths in tokens, in rising order. Those above the engine's maximum are left out."""
    discount: float = Field(default=0.99, gt=0, le=1)
    """Factor on the weight of earlier observations at each step of the same bandit; 1 never forgets."""
    exploration: float = Field(default=0.1, ge=0, le=1000, json_schema_extra=CEILING)
    """Width of the confidence bound, as a share of the best arm's tokens per second."""

    def build(self, profile: Profile | None, seed: int) -> BanditPolicy:
        return BanditPolicy(self)


class BanditPolicy:
    """The reward of a step's arm is the step's emitted tokens per second."""

    def __init__(self, config: BanditConfig) -> None:
        self._config = config
        self._arms: dict[tuple[int, int], _Arms] = {}
        """By batch size and the engine's maximum."""
        self._open = PlansInFlight[tuple[_Arms, int]]()
        """Bandit and arm of each step that is planned and not yet observed."""

    def plan(self, view: StepView) -> StepPlan:
        if not view.draft_limits.any():  # all arms are the same plan: the step's reward says nothing of any
            return StepPlan(np.zeros(view.size, np.int64), reason="bandit: no request can draft")
        arms = self._bandit(view)
        arm = arms.choose()
        self._open.put(view.step, (arms, arm))
        length = arms.draft_lengths[arm]
        return StepPlan.same_length(view, length, f"bandit: K = {length} at batch size {view.size}")

    def observe(self, outcome: StepOutcome) -> None:
        arms, arm = self._open.pop(outcome.step) or (None, 0)
        if arms is not None and outcome.step_seconds > 0:
            arms.reward(arm, float(outcome.emitted.sum()) / outcome.step_seconds)

    def _bandit(self, view: StepView) -> _Arms:
        bucket = view.size.bit_length(), view.max_draft  # 1, 2 to 3, 4 to 7, ... requests
        if bucket not in self._arms:
            lengths = [length for length in self._config.draft_lengths if length <= view.max_draft]
            self._arms[bucket] = _Arms(lengths or [view.max_draft], self._config)
        return self._arms[bucket]


class _Arms:
    """A discounted UCB bandit."""

    def __init__(self, draft_lengths: list[int], config: BanditConfig) -> None:
        self.draft_lengths = draft_lengths
        self._config = config
        self._weights = np.zeros(len(draft_lengths))
        """Discounted number of rewards of each arm."""
        self._sums = np.zeros(len(draft_lengths))
        """Discounted sum of each arm's rewards, tokens/s."""

    def choose(self) -> int:
        """The arm with the highest upper bound; arms never tried come first, in order of draft length."""
        if not self._weights.all():
            return int(np.argmin(self._weights > 0))
        means = self._sums / self._weights
        spread = np.sqrt(math.log(self._weights.sum()) / self._weights)  # the newest weight alone is 1
        return int(np.argmax(means + self._config.exploration * means.max() * spread))

    def reward(self, arm: int, tokens_per_second: float) -> None:
        self._weights *= self._config.discount
        self._sums *= self._config.discount
        self._weights[arm] += 1.0
        self._sums[arm] += tokens_per_second
