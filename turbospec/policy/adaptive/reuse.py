"""For how many steps `adaptive` lets a plan be reused. It depends on predicted step times, not on a clock, so that runs
are reproducible."""

from __future__ import annotations

import math

DECISION_SECONDS = 2.5e-4
"""Time to learn from a step and to plan one. A constant, so that the same outcomes give the same plans."""
DECISION_SHARE = 0.01
"""Share of step time that decisions may take."""
MAX_STEPS = 4
"""Most steps that run on one plan."""

IDLE_SECONDS = 5e-4
"""`DECISION_SECONDS` in an engine that runs steps without drafts on its own, the engine's own work included."""
MAX_IDLE_STEPS = 64


def steps_of_a_plan(step_seconds: float) -> int:
    """Steps that may run on a plan whose steps take `step_seconds`; 1 if that is NaN or 0."""
    if not step_seconds > 0.0:
        return 1
    return max(min(math.ceil(DECISION_SECONDS / (DECISION_SHARE * step_seconds)), MAX_STEPS), 1)


def steps_without_drafts(step_seconds: float, in_a_row: int = 0) -> int:
    """Steps that an engine may run on a plan without drafts; doubled for each of up to four such plans before it."""
    if not step_seconds > 0.0:
        return 1
    return min(math.ceil(2 ** min(in_a_row, 4) * IDLE_SECONDS / (DECISION_SHARE * step_seconds)), MAX_IDLE_STEPS)
