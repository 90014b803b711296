"""The best token rate of one step: the price of time λ for a load that the server has not measured yet.

The objective itself, expected tokens minus λ times duration, is maximised in `turbospec.planning.exact`.
"""

from __future__ import annotations

from collections.abc import Callable

from turbospec.planning.exact import DraftPlan

MOST_ITERATIONS = 4
"""The rate converges superlinearly."""


def best_rate(plan_at: Callable[[float], DraftPlan], base_seconds: float, base_tokens: float) -> float:
    """Highest expected tokens/s over all plans of one step (Dinkelbach, Management Science 13, 1967).

    Args:
        plan_at: the best plan at a price of time λ in tokens/s.
        base_seconds: duration of the step without drafts.
        base_tokens: tokens that it emits without drafts.
    """
    rate = base_tokens / base_seconds
    for _ in range(MOST_ITERATIONS):
        plan = plan_at(rate)
        improved = (base_tokens + plan.gain) / plan.seconds
        if improved <= rate * (1.0 + 1e-6):
            break
        rate = improved
    return rate
