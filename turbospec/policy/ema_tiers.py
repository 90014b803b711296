"""`ema_tiers`: moves up and down a short list of draft lengths by the average of accepted tokens, as in SGLang.

Source: SGLang 0.5.23, python/sglang/srt/speculative/adaptive_spec_params.py.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

from pydantic import Field

from turbospec.files.settings import Settings
from turbospec.interface import MAX_DRAFT_LENGTH, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import CEILING, BatchSize, DraftLength, DraftLengths, PolicyConfig, Steps


class TierSlot(Settings):
    """Candidate draft lengths for a range of batch sizes, and the margins for moving between them."""

    candidates: DraftLengths
    """Draft lengths in tokens, in rising order."""
    up_hysteresis: float = Field(default=0.0, ge=-MAX_DRAFT_LENGTH, le=MAX_DRAFT_LENGTH, json_schema_extra=CEILING)
    """Tokens added to the average at which the draft length goes up."""
    down_hysteresis: float = Field(default=-0.25, ge=-MAX_DRAFT_LENGTH, le=MAX_DRAFT_LENGTH, json_schema_extra=CEILING)
    """Tokens added to the average at which the draft length goes down; negative values delay going down."""


class EmaTiersConfig(PolicyConfig):
    """Tiers of draft lengths per batch size; the tier follows the average number of accepted draft tokens."""

    policy: Literal["ema_tiers"]
    slots: dict[BatchSize, TierSlot] = Field(
        default_factory=lambda: {
            1: TierSlot(candidates=(1, 3, 5, 7)),
            8: TierSlot(candidates=(0, 1, 3), down_hysteresis=0.0),
            32: TierSlot(candidates=(0, 1), down_hysteresis=0.0),
            64: TierSlot(candidates=(0,), down_hysteresis=0.0),
        },
        min_length=1,
    )
    """Candidates by batch size in requests. A batch uses the largest listed size that it reaches."""
    start: DraftLength = 3
    """First draft length, in tokens. A slot that does not list it starts in the middle of its candidates."""
    ema_weight: float = Field(default=0.2, gt=0, le=1)
    """Weight of the newest step in the moving average."""
    warmup_steps: Steps = 10
    """Steps of a slot before its first decision."""
    decision_interval: int = Field(default=5, ge=1, le=1_000_000, json_schema_extra=CEILING)
    """Steps of a slot between two decisions."""

    def build(self, profile: Profile | None, seed: int) -> EmaTiersPolicy:
        return EmaTiersPolicy(self)


class EmaTiersPolicy:
    """Keeps one `_Slot` per listed batch size, which decides for the batches that reach this size."""

    def __init__(self, config: EmaTiersConfig) -> None:
        self._sizes = sorted(config.slots)
        self._slots = [_Slot(config, config.slots[size]) for size in self._sizes]

    def plan(self, view: StepView) -> StepPlan:
        slot = self._slot(view.size)
        reason = f"ema_tiers: K = {slot.length}, {slot.average:.2f} tokens accepted on average"
        return StepPlan.same_length(view, slot.length, reason)

    def observe(self, outcome: StepOutcome) -> None:
        self._slot(len(outcome.request_ids)).observe(outcome)

    def _slot(self, batch_size: int) -> _Slot:
        return self._slots[max(bisect_right(self._sizes, batch_size) - 1, 0)]


class _Slot:
    """The current draft length for one range of batch sizes, and what it is decided by."""

    def __init__(self, config: EmaTiersConfig, slot: TierSlot) -> None:
        self._config = config
        self._slot = slot
        candidates = slot.candidates
        self.length = config.start if config.start in candidates else candidates[len(candidates) // 2]
        self.average = self.length - 1.0
        """Moving average of accepted draft tokens per request; starts between the bounds for going up and down."""
        self._steps = 0

    def observe(self, outcome: StepOutcome) -> None:
        """Update the average from a step of this slot, and decide if a decision is due."""
        if self.length > 0:
            shown = (outcome.drafted > 0) & ~outcome.truncated
            if not shown.any():
                return
            self.average += self._config.ema_weight * (float(outcome.accepted[shown].mean()) - self.average)
        elif not outcome.emitted.any():
            return
        self._steps += 1
        since_warmup = self._steps - self._config.warmup_steps
        if since_warmup > 0 and since_warmup % self._config.decision_interval == 0:
            self.length = self._decide()

    def _decide(self) -> int:
        candidates = self._slot.candidates
        index = started = candidates.index(self.length)
        last = len(candidates) - 1
        if self.length == 0:  # K = 0 shows no acceptance: always probe the next candidate
            probe = candidates[min(index + 1, last)]
            if probe > 0 and self.average < 0.0:
                self.average = probe - 1.0
            return probe
        while index > 0 and self.average <= self._floor(candidates[index - 1]):
            index -= 1
        if index == started:
            while index < last and self.average > candidates[index] - 0.5 + self._slot.up_hysteresis:
                index += 1
        return candidates[index]

    def _floor(self, below: int) -> float:
        """Average at or below which the slot goes down to the candidate `below`."""
        return (0.5 if below == 0 else below - 0.5) + self._slot.down_hysteresis
