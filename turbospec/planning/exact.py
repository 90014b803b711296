"""The exact draft-length optimiser: maximises the objective, expected tokens minus λ times the step's duration.

    max over k   Σ_i Σ_{j≤k_i} gain[i,j]  −  λ · (D(d, m) + V(m)),      d = max_i k_i,  m = Σ_i k_i

where gain[i,j] is the survival S[i,j] of request i's j-th draft token (times the request's weight), V(m) the duration
of the verify pass with m draft tokens in it, any non-decreasing function, and D the duration of drafting. If a
sequential drafter's pass over r rows costs α + β·r, then d passes over a total of m rows cost α·d + β·m: D depends on d
and m alone. As gain[i,·] does not increase, the best m tokens within depth d are the m largest gains of the first d
columns, and they form a prefix of every row. One scan over the gains in falling order, with a running sum for every d,
therefore finds the optimum of every pair (d, m), in O(nK log nK + nK²). It is exact also where V has steps due to graph
padding.

Engines with full CUDA graphs replay one if every request verifies the same number of draft tokens, out of a short list;
any other step takes a fixed time longer. With that time added to every plan with drafts, the scan finds the best plan
of unequal lengths. The few uniform plans, in which shorter drafts are padded, are compared with it one by one.

A fixed cost per drafting request (catching up its drafter KV lag) breaks that argument: finding the best plan is then a
knapsack problem. A heuristic then excludes the requests whose gain does not cover their fixed cost; its loss against
brute force is below 1 % in the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.planning.gain_histogram import passes_run
from turbospec.runtime.kernels import compiled, unnamed


@dataclass(slots=True)
class StepCosts:
    """Duration of a step in seconds, as a function of its draft lengths."""

    verify: FloatArray
    """(M + 1,) V(m): the step without its drafting (host work and the target's pass) with m = 0 … M draft tokens; must
    not decrease. M bounds the plan's draft tokens."""
    draft_start: float = 0.0
    """Fixed cost of a step with any draft."""
    draft_pass: float = 0.0
    """α, per drafter pass, that is per position of depth. A parallel drafter's only pass belongs in `draft_start`."""
    draft_token: float = 0.0
    """β, per draft token: a row of a drafter pass."""
    piecewise: float = 0.0
    """Added to a step with drafts that is not padded to one of `graph_lengths`."""
    graph_lengths: tuple[int, ...] = ()
    """Draft lengths above 0 that every request's draft can be padded to, with so many drafter passes; `verify` covers n
    times the longest. With them the optimum is exact if `draft_token` is 0, as where passes run over the batch."""
    pass_graphs: int = 0
    """As in `turbospec.planning.gain_histogram.LinearCosts`."""

    def with_graphs(self, lengths: tuple[int, ...], piecewise: float) -> StepCosts:
        """The costs in an engine with full CUDA graphs for these lengths, 0 included or not; these are of full graphs.

        Args:
            lengths: a view's `graph_lengths`; empty for the costs as they are.
            piecewise: seconds that a step without a full graph takes longer.
        """
        if not lengths:
            return self
        verify = self.verify.copy()
        if 0 not in lengths:
            verify[0] += piecewise
        return replace(self, verify=verify, piecewise=piecewise, graph_lengths=tuple(each for each in lengths if each))

    def seconds(self, draft_lengths: IntArray, padded_length: int = 0) -> float:
        """Duration of a step with these (n,) draft lengths, fixed costs of requests not included."""
        m = int(draft_lengths.sum())
        if m == 0:
            return float(self.verify[0])
        depth = padded_length or int(draft_lengths.max())
        verified = padded_length * len(draft_lengths) or m
        graph = 0.0 if padded_length else self.piecewise
        passes = passes_run(depth, self.pass_graphs)
        drafting = self.draft_start + self.draft_pass * passes + self.draft_token * m
        return float(drafting + graph + self.verify[verified])


@dataclass(slots=True, frozen=True)
class DraftPlan:
    """Draft lengths, with their expected gain and the step's predicted duration."""

    draft_lengths: IntArray
    gain: float
    """Σ gain[i,j] of the chosen tokens: expected accepted tokens where the weights are 1."""
    seconds: float
    """Duration of the step, fixed costs of requests included."""
    padded_length: int = 0
    """As in a `StepPlan`."""

    def value(self, price: float) -> float:
        """The objective, in tokens, at a price of time λ in tokens/s."""
        return self.gain - price * self.seconds


def plan_draft_lengths(
    gains: FloatArray,
    costs: StepCosts,
    price: float,
    *,
    request_seconds: FloatArray | None = None,
    max_seconds: float = math.inf,
) -> DraftPlan:
    """Draft lengths that maximise expected tokens minus λ times the step's duration.

    Args:
        gains: (n, K) weighted survival of each draft token, not increasing along a row; 0 where no draft is possible.
        costs: the step's cost model; its `verify` table may be shorter than n·K, which caps the plan's tokens.
        price: λ in tokens/s, at least 0.
        request_seconds: (n,) fixed cost of each request that drafts at all; None for none.
        max_seconds: plans that take longer are not chosen, except the plan without drafts.
    """
    scan = _GainScan(gains, costs, price, max_seconds)
    if request_seconds is None or not request_seconds.any():
        best = scan.best(np.ones(len(gains), np.bool_))
    else:
        best = _with_request_costs(scan, request_seconds)
    uniform = _best_uniform(gains, scan, request_seconds)
    return best if uniform is None or uniform.value(price) <= best.value(price) else uniform


def _best_uniform(gains: FloatArray, scan: _GainScan, request_seconds: FloatArray | None) -> DraftPlan | None:
    """The best plan in which all requests draft the same one of `graph_lengths`, padded where they cannot."""
    costs, lengths = scan.costs, scan.costs.graph_lengths
    if not lengths:
        return None
    fixed = np.zeros(len(gains)) if request_seconds is None else request_seconds
    best, gain, seconds = _uniform(gains, np.array(lengths, np.int64), fixed, costs.verify, scan.linear)
    return (
        None
        if best < 0
        else DraftPlan(np.count_nonzero(gains[:, : lengths[best]], axis=1), gain, seconds, lengths[best])
    )


class _Linear(NamedTuple):
    """The scalar part of a scan's inputs."""

    draft_start: float
    draft_pass: float
    draft_token: float
    piecewise: float
    price: float
    max_seconds: float
    pass_graphs: int


class _GainScan:
    """The gains in falling order, to be scanned for different sets of requests."""

    def __init__(self, gains: FloatArray, costs: StepCosts, price: float, max_seconds: float) -> None:
        self.gains, self.costs, self.price, self.max_seconds = gains, costs, price, max_seconds
        self.linear = unnamed(
            _Linear(
                costs.draft_start,
                costs.draft_pass,
                costs.draft_token,
                costs.piecewise,
                price,
                max_seconds,
                costs.pass_graphs,
            )
        )
        # In an optimum each chosen gain covers at least the cheapest increment of the verify pass and a row of a
        # drafter pass; otherwise dropping it would be better. Smaller gains need not be sorted.
        values = gains.ravel()
        candidates = np.flatnonzero(values > price * (costs.draft_token + _smallest_increment(costs.verify)))
        # Rows do not increase and the sort is stable: every prefix of the order contains a prefix of each row.
        self.order = candidates[np.argsort(-values[candidates], kind="stable")]

    def best(self, allowed: BoolArray) -> DraftPlan:
        """The optimum in which only the (n,) `allowed` requests draft, fixed costs of requests not included."""
        return DraftPlan(*_scan(self.gains, self.order, allowed, self.costs.verify, self.linear))

    def surplus(self, plan: DraftPlan) -> FloatArray:
        """(n,) gain of each request's drafts minus the price of the time that their tokens take, in tokens."""
        m = int(plan.draft_lengths.sum())
        token_seconds = self.costs.draft_token + (self.costs.verify[m] - self.costs.verify[0]) / max(m, 1)
        columns = np.arange(int(self.gains.shape[1]), dtype=np.int64)
        gained = np.where(columns < plan.draft_lengths[:, None], self.gains, 0.0).sum(axis=1)
        return gained - self.price * token_seconds * plan.draft_lengths


def _with_request_costs(scan: _GainScan, request_seconds: FloatArray) -> DraftPlan:
    """The best of the plans found while excluding requests whose gain does not cover their fixed cost.

    The search starts twice: from all requests, and from those without a fixed cost.
    """
    best = DraftPlan(np.zeros(len(request_seconds), np.int64), 0.0, float(scan.costs.verify[0]))
    for initial in (np.ones(len(request_seconds), np.bool_), request_seconds <= 0.0):
        allowed = initial
        while allowed.any():
            without = scan.best(allowed)
            drafting = without.draft_lengths > 0
            plan = DraftPlan(
                without.draft_lengths, without.gain, without.seconds + float(request_seconds[drafting].sum())
            )
            if plan.seconds <= scan.max_seconds and plan.value(scan.price) > best.value(scan.price):
                best = plan
            losing = drafting & (scan.surplus(without) < scan.price * request_seconds)
            if not losing.any():
                break
            allowed = allowed & ~losing
    return best


@compiled
def _smallest_increment(verify: FloatArray) -> float:
    smallest = math.inf
    for m in range(1, len(verify)):
        smallest = min(smallest, verify[m] - verify[m - 1])
    return max(smallest, 0.0)


@compiled
def _uniform(
    gains: FloatArray, lengths: IntArray, request_seconds: FloatArray, verify: FloatArray, linear: _Linear
) -> tuple[int, float, float]:
    """Index in `lengths`, gain and seconds of the best uniform plan; index -1 where all take longer than allowed."""
    linear = _Linear(*linear)
    n = len(gains)
    best, best_gain, best_seconds = -1, 0.0, 0.0
    for index, length in enumerate(lengths):
        gain, fixed, drafted = 0.0, 0.0, 0
        for row in range(n):
            if gains[row, 0] != 0.0:
                fixed += request_seconds[row]
            for j in range(min(length, gains.shape[1])):
                gain += gains[row, j]
                drafted += gains[row, j] != 0.0
        seconds = verify[0]
        if drafted:
            passes = passes_run(length, linear.pass_graphs)
            drafting = linear.draft_start + linear.draft_pass * passes + linear.draft_token * drafted
            seconds = drafting + fixed + verify[length * n]
        if seconds > linear.max_seconds:
            continue
        if best < 0 or gain - linear.price * seconds > best_gain - linear.price * best_seconds:
            best, best_gain, best_seconds = index, gain, seconds
    return best, best_gain, best_seconds


@compiled
def _scan(
    gains: FloatArray, order: IntArray, allowed: BoolArray, verify: FloatArray, linear: _Linear
) -> tuple[IntArray, float, float]:
    """Lengths, gain and seconds of the best plan along `order`, the flat indices of `gains` in falling order."""
    linear = _Linear(*linear)
    n, columns = gains.shape
    total = np.zeros(columns + 1)
    count = np.zeros(columns + 1, np.int64)
    start = linear.draft_start + linear.piecewise
    best_value = -linear.price * verify[0]
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
            passes = passes_run(d, linear.pass_graphs)
            seconds = start + linear.draft_pass * passes + linear.draft_token * m + verify[m]
            value = total[d] - linear.price * seconds
            if value > best_value and seconds <= linear.max_seconds:
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
