"""The best token rate of one step: the price of time λ for a load that the server has not measured yet.

The objective itself, expected tokens minus λ times duration, is maximised in `turbospec.planning.exact`.
"""

from __future__ import annotations

from turbospec.interface import FloatArray
from turbospec.planning.exact import DraftPlan, StepCosts, plan_draft_lengths


def best_rate(gains: FloatArray, costs: StepCosts, base_tokens: float, iterations: int = 4) -> float:
    """Highest expected tokens/s over all plans of one step (Dinkelbach, Management Science 13, 1967).

    Args:
        gains: (n, K) survival S[i,j] of each draft token.
        costs: the step's cost model.
        base_tokens: tokens that the step emits without drafts.
        iterations: at most; the rate converges superlinearly.
    """
    rate = base_tokens / float(costs.verify[0])
    for _ in range(iterations):
        plan: DraftPlan = plan_draft_lengths(gains, costs, rate)
        improved = (base_tokens + plan.gain) / plan.seconds
        if improved <= rate * (1.0 + 1e-6):
            break
        rate = improved
    return rate
