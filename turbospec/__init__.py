"""TurboSpec: a closed-loop controller for speculative decoding.

The names below are the contract between an engine, the controller and a policy. Importing them needs numpy alone.
"""

from turbospec.errors import UserError
from turbospec.interface import (
    DraftGate,
    DraftSelection,
    DraftTrim,
    LookupView,
    Phase,
    Policy,
    Source,
    StepOutcome,
    StepPlan,
    StepView,
)

__all__ = [
    "DraftGate",
    "DraftSelection",
    "DraftTrim",
    "LookupView",
    "Phase",
    "Policy",
    "Source",
    "StepOutcome",
    "StepPlan",
    "StepView",
    "UserError",
]
