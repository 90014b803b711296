"""Plans of a step with two sources: the lengths of `turbospec.planning.exact`, for the better source of each request.

A sequential drafter's passes are shared: what a request gains from the drafter depends on the depth d that the whole
batch pays for. For each d, 0 included, every request takes the better of its two rows: the drafter's, cut at d, or the
look-up's; the exact planner then chooses the lengths. Which row is better depends on the price of a verified token,
which depends on how many are chosen: the rows are first taken as if it were 0, then at the price in that plan. A
heuristic, therefore, whose loss against brute force is below 1 % in the tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray, Source
from turbospec.planning.exact import DraftPlan, StepCosts, plan_draft_lengths

ROUNDS = 2


class SourcedPlan(NamedTuple):
    """Draft lengths and their sources."""

    plan: DraftPlan
    sources: IntArray | None = None
    """(n,) `Source` of each draft; None: the drafter makes all of them."""


def plan_sources(
    drafter: FloatArray, lookup: FloatArray, costs: StepCosts, price: float, request_seconds: FloatArray
) -> SourcedPlan:
    """Lengths and sources that maximise expected tokens minus λ times the step's duration.

    Args:
        drafter: (n, K) survival of each token of the drafter; 0 where no draft is possible.
        lookup: (n, L) the same of the look-up.
        costs: the step's; those of drafting are the drafter's. `verify` covers all drafts.
        price: λ in tokens/s, at least 0.
        request_seconds: (n,) fixed cost of each request that drafts from the drafter.
    """
    n, depths = drafter.shape
    width = max(depths, lookup.shape[1])
    look = np.zeros((n, width))
    look[:, : lookup.shape[1]] = lookup
    # Where a pass more costs nothing, the deepest draft is as cheap as any.
    tried = range(depths + 1) if costs.draft_pass else (0, depths)
    best: SourcedPlan | None = None
    for depth in tried:
        own = np.zeros((n, width))
        own[:, :depth] = np.maximum(drafter[:, :depth] - price * costs.draft_token, 0.0)
        start = costs.draft_start + costs.draft_pass * depth if depth else 0.0
        flat = replace(costs, draft_start=start, draft_pass=0.0, draft_token=0.0)
        token_price = 0.0
        for _ in range(ROUNDS):
            worth = np.maximum(own - token_price, 0.0).sum(axis=1) - price * request_seconds
            of_lookup: BoolArray = np.maximum(look - token_price, 0.0).sum(axis=1) >= np.maximum(worth, 0.0)
            rows = np.where(of_lookup[:, None], look, own)
            fixed = np.where(of_lookup, 0.0, request_seconds)
            plan = plan_draft_lengths(rows, flat, price, request_seconds=fixed)
            if costs.draft_token:
                # Its price was taken off the gains.
                tokens = int(plan.draft_lengths[~of_lookup].sum())
                own_cost = costs.draft_token * tokens
                plan = replace(plan, gain=plan.gain + price * own_cost, seconds=plan.seconds + own_cost)
            if best is None or plan.value(price) > best.plan.value(price):
                best = SourcedPlan(plan, np.where(of_lookup, Source.LOOKUP.value, Source.DRAFTER.value))
            chosen = int(plan.draft_lengths.sum())
            if not chosen:
                break
            token_price = price * float(costs.verify[chosen] - costs.verify[0]) / chosen
    assert best is not None
    return best
