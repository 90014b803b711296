"""Plans that are kept for a few steps where steps are too short to decide each anew.

A decision takes some hundred microseconds, most of it for code and data that the models' passes have pushed out of
the caches: nothing beside a step of 30 ms, and 3 % of one of 7 ms. What a plan rests on hardly moves within a few short
steps as long as the same requests decode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turbospec.interface import IntArray, StepPlan, StepView
from turbospec.planning.gate import SurvivalGate

DECISION_SECONDS = 2.5e-4
"""What it takes to learn from a step and to plan one: a constant, so that the same outcomes give the same plans."""
DECISION_SHARE = 0.01
"""Share of step time that decisions may take."""
MAX_STEPS = 4
"""Most steps that run on one decision."""

IDLE_SECONDS = 5e-4
"""What a step's planning and learning take of an engine that asks for a plan less often where nothing is drafted, the
engine's side included."""
MAX_IDLE_STEPS = 64


def steps_without_drafts(step_seconds: float, in_a_row: int = 0) -> int:
    """Steps that a plan of no drafts is good for: the longer, the more of them came before it."""
    if not step_seconds > 0.0:
        return 1
    return min(math.ceil(2 ** min(in_a_row, 4) * IDLE_SECONDS / (DECISION_SHARE * step_seconds)), MAX_IDLE_STEPS)


@dataclass(slots=True)
class HeldPlan:
    """A decision and the steps that it is still good for."""

    request_ids: IntArray
    draft_lengths: IntArray
    gate: SurvivalGate | None
    predicted_tokens: float
    predicted_seconds: float
    last_step: int
    """The last of the engine's steps that it is good for."""
    steps: int
    """`StepPlan.steps` of the plan."""

    @classmethod
    def of(cls, plan: StepPlan, view: StepView) -> HeldPlan | None:
        """Keep a plan of this view for as long as its steps' duration asks; None where that is for no further step."""
        if view.prefill_pending or not plan.predicted_seconds > 0.0:
            return None
        steps = min(math.ceil(DECISION_SECONDS / (DECISION_SHARE * plan.predicted_seconds)), MAX_STEPS) - 1
        if steps <= 0:
            return None
        gate = plan.gate if isinstance(plan.gate, SurvivalGate) else None
        return cls(
            view.request_ids,
            plan.draft_lengths,
            gate,
            plan.predicted_tokens,
            plan.predicted_seconds,
            view.step + steps,
            plan.steps,
        )

    def again(self, view: StepView) -> StepPlan | None:
        """The plan for one step more; None where it has served its time, or the batch is another."""
        if view.step > self.last_step or view.prefill_pending or not np.array_equal(view.request_ids, self.request_ids):
            return None
        lengths = np.minimum(self.draft_lengths, view.draft_limits)
        return StepPlan(
            lengths,
            self.predicted_tokens,
            self.predicted_seconds,
            "as in the step before",
            gate=self.gate.for_next_step(lengths) if self.gate is not None else None,
            steps=self.steps,
        )
