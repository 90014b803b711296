"""The rate that a step's own plans can reach."""

from __future__ import annotations

from turbospec.interface import FloatArray
from turbospec.planning.exact import DraftPlan, StepCosts, plan_draft_lengths


def best_rate(gains: FloatArray, costs: StepCosts, base_tokens: float, iterations: int = 4) -> float:
    """Highest expected tokens a second over all plans of one step (Dinkelbach, Management Science 13, 1967)."""
    rate = base_tokens / float(costs.verify[0])
    for _ in range(iterations):
        plan: DraftPlan = plan_draft_lengths(gains, costs, rate)
        improved = (base_tokens + plan.gain) / plan.seconds
        if improved <= rate * (1.0 + 1e-6):
            break
        rate = improved
    return rate
