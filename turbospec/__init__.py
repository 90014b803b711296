"""TurboSpec: a closed-loop controller for speculative decoding."""

from turbospec.errors import UserError
from turbospec.interface import DraftGate, Phase, StepController, StepOutcome, StepPlan, StepView

__all__ = ["DraftGate", "Phase", "StepController", "StepOutcome", "StepPlan", "StepView", "UserError"]
