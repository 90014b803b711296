"""Planning: the objective, the exact planner, gated drafts, the TPOT SLO, the correction of prediction bias.

The names below are for policies and the simulator; everything else in this package may change.
"""

from turbospec.planning.best_rate import best_rate
from turbospec.planning.exact import DraftPlan, StepCosts, plan_draft_lengths
from turbospec.planning.gate import GatePrices, SurvivalGate
from turbospec.planning.prediction_bias import PredictionBias
from turbospec.planning.problem import Batch, StepProblem, amortise_catch_up, fixed_lengths, gated_start
from turbospec.planning.slo import TpotSlo
from turbospec.planning.step_costs import step_costs
from turbospec.planning.stopping import PassValueCache

__all__ = [
    "Batch",
    "DraftPlan",
    "GatePrices",
    "PassValueCache",
    "PredictionBias",
    "StepCosts",
    "StepProblem",
    "SurvivalGate",
    "TpotSlo",
    "amortise_catch_up",
    "best_rate",
    "fixed_lengths",
    "gated_start",
    "plan_draft_lengths",
    "step_costs",
]
