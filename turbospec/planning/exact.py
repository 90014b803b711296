"""The exact draft-length optimiser.

A plan is worth its expected tokens less the price of its time:

    max over k   Σ_i Σ_{j≤k_i} gain[i, j]  −  price · (D(d, m) + V(m)),      d = max_i k_i,  m = Σ_i k_i

where gain[i, j] is the survival S[i, j] of request i's j-th draft token (times the request's weight), V(m) the verify
pass with m draft tokens in it, any non-decreasing function, and D the drafting. If a sequential drafter's pass over r
rows costs α + β·r, then d passes over m rows in all cost α·d + β·m: D depends on (d, m) alone. As gain[i, ·] does
not increase, the best m tokens within depth d are the m largest gains of the first d columns, and they form a prefix
of every row. One walk over the gains in falling order, keeping a running sum for every d, therefore meets the optimum
of every pair (d, m): O(nK log nK + nK²), no approximation, graph-padding steps in V included.

A charge per request (catching up a stale drafter) breaks that argument: the best plan is then a knapsack. The plan
is mended instead, by shutting out the requests that do not earn their charge; tests hold the loss against brute force.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.runtime.kernels import compiled


@dataclass(slots=True)
class StepCosts:
    """What a step costs in seconds, as the planner needs it."""

    verify: FloatArray
    """(M + 1,) the step without its drafting (host work and the target's pass) with 0 … M draft tokens in it;
    must not decrease. M bounds the plan's draft tokens."""
    draft_start: float = 0.0
    """Once for a step that drafts at all."""
    draft_pass: float = 0.0
    """Each draft pass, that is each level of depth. A parallel drafter's one pass belongs in `draft_start`."""
    draft_token: float = 0.0
    """Each draft token: a row of a draft pass."""

    def seconds(self, draft_lengths: IntArray) -> float:
        """Duration of a step with these draft lengths, catch-up charges excluded."""
        m = int(draft_lengths.sum())
        if m == 0:
            return float(self.verify[0])
        depth = int(draft_lengths.max())
        return float(self.draft_start + self.draft_pass * depth + self.draft_token * m + self.verify[m])


@dataclass(slots=True, frozen=True)
class DraftPlan:
    """An optimum: what to draft, the gain it expects and the time it takes."""

    draft_lengths: IntArray
    gain: float
    """Σ of the chosen gains: expected accepted tokens where the weights are 1."""
    seconds: float
    """Duration of the step, catch-up charges included."""

    def value(self, price: float) -> float:
        """What the plan is worth, in tokens."""
        return self.gain - price * self.seconds


def plan_draft_lengths(
    gains: FloatArray,
    costs: StepCosts,
    price: float,
    *,
    charges: FloatArray | None = None,
    max_seconds: float = math.inf,
) -> DraftPlan:
    """Draft lengths that maximise expected tokens less the price of the step's time.

    Args:
        gains: (n, K) weighted survival of each draft token, not increasing along a row; 0 where no draft is possible.
        costs: the step's cost model; its `verify` table may be shorter than n·K, which caps the plan's tokens.
        price: tokens that a second is worth, at least 0.
        charges: (n,) seconds that a request costs once if it drafts at all; None for none.
        max_seconds: no plan that takes longer is chosen, except drafting nothing at all.
    """
    walk = _Walk(gains, costs, price, max_seconds)
    if charges is None or not charges.any():
        return walk.best(np.ones(len(gains), np.bool_))
    return _with_charges(walk, charges)


class _Walk:
    """The gains in falling order, to be walked for one set of requests or another."""

    def __init__(self, gains: FloatArray, costs: StepCosts, price: float, max_seconds: float) -> None:
        self.gains, self.costs, self.price, self.max_seconds = gains, costs, price, max_seconds
        # An optimum loses nothing by giving up its smallest gain, so that gain covers at least the cheapest place in
        # the verify pass and a row of a draft pass. What earns less is not worth sorting.
        values = gains.ravel()
        candidates = np.flatnonzero(values > price * (costs.draft_token + _smallest_step(costs.verify)))
        # Rows do not increase and the sort is stable: every prefix of the walk holds a prefix of each row.
        self.order = candidates[np.argsort(-values[candidates], kind="stable")]

    def best(self, allowed: BoolArray) -> DraftPlan:
        """The optimum in which only the `allowed` requests draft, charges left out."""
        costs = self.costs
        lengths, gain, seconds = _walk(
            self.gains, self.order, allowed, costs.verify, costs.draft_start, costs.draft_pass, costs.draft_token,
            self.price, self.max_seconds,
        )  # fmt: skip
        return DraftPlan(lengths, gain, seconds)

    def worth(self, plan: DraftPlan) -> FloatArray:
        """(n,) tokens that each request's drafts earn over the time that their own tokens take."""
        m = int(plan.draft_lengths.sum())
        token_seconds = self.costs.draft_token + (self.costs.verify[m] - self.costs.verify[0]) / max(m, 1)
        columns = np.arange(int(self.gains.shape[1]), dtype=np.int64)
        earned = np.where(columns < plan.draft_lengths[:, None], self.gains, 0.0).sum(axis=1)
        return earned - self.price * token_seconds * plan.draft_lengths


def _with_charges(walk: _Walk, charges: FloatArray) -> DraftPlan:
    """Best of the plans met while shutting out requests that do not earn their charge.

    Two descents: from all requests, and from those that owe nothing, whose drafts may carry the others' depth.
    """
    best = DraftPlan(np.zeros(len(charges), np.int64), 0.0, float(walk.costs.verify[0]))
    for opening in (np.ones(len(charges), np.bool_), charges <= 0.0):
        allowed = opening
        while allowed.any():
            free = walk.best(allowed)
            drafting = free.draft_lengths > 0
            plan = DraftPlan(free.draft_lengths, free.gain, free.seconds + float(charges[drafting].sum()))
            if plan.seconds <= walk.max_seconds and plan.value(walk.price) > best.value(walk.price):
                best = plan
            losing = drafting & (walk.worth(free) < walk.price * charges)
            if not losing.any():
                break
            allowed = allowed & ~losing
    return best


@compiled
def _smallest_step(verify: FloatArray) -> float:
    smallest = math.inf
    for m in range(1, len(verify)):
        smallest = min(smallest, verify[m] - verify[m - 1])
    return max(smallest, 0.0)


@compiled
def _walk(
    gains: FloatArray,
    order: IntArray,
    allowed: BoolArray,
    verify: FloatArray,
    draft_start: float,
    draft_pass: float,
    draft_token: float,
    price: float,
    max_seconds: float,
) -> tuple[IntArray, float, float]:
    """Lengths, gain and seconds of the best plan along `order`, the flat indices of `gains` in falling order."""
    n, columns = gains.shape
    total = np.zeros(columns + 1)
    count = np.zeros(columns + 1, np.int64)
    best_value = -price * verify[0]
    best_gain, best_seconds, best_depth, best_count = 0.0, verify[0], 0, 0
    for index in order:
        row, depth = index // columns, index % columns + 1
        if not allowed[row]:
            continue
        gain = gains[row, depth - 1]
        for d in range(depth, columns + 1):
            m = count[d] + 1
            if m >= len(verify):
                continue
            count[d] = m
            total[d] += gain
            seconds = draft_start + draft_pass * d + draft_token * m + verify[m]
            value = total[d] - price * seconds
            if value > best_value and seconds <= max_seconds:
                best_value, best_gain, best_seconds, best_depth, best_count = value, total[d], seconds, d, m
    lengths = np.zeros(n, np.int64)
    taken = 0
    for index in order:
        if taken == best_count:
            break
        if allowed[index // columns] and index % columns < best_depth:
            lengths[index // columns] += 1
            taken += 1
    return lengths, best_gain, best_seconds
