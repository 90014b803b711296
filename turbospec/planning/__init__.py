"""Planning: the objective, its fast planner and the exact one, the SLOs.

The names below are for policies and the simulator; everything else in this package may change.
"""

from turbospec.planning.exact import DraftPlan, StepCosts, plan_draft_lengths
from turbospec.planning.slo import TpotSlo

__all__ = ["DraftPlan", "StepCosts", "TpotSlo", "plan_draft_lengths"]
