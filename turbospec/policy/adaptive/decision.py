"""One decision of `adaptive`, compiled: price of time, best plan, experiments; and one update of all that is learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from turbospec.exploration.knowledge_gradient import improvement, learnt_seconds
from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import Memory, VerifiedDrafts, fill_survival
from turbospec.models.acceptance import observe as observe_drafts
from turbospec.models.logistic import (
    CLASS_PRIOR_VARIANCE,
    LEVEL_PRIOR_VARIANCE,
    MAX_CLASSES,
    Terms,
    between_request_variance,
    posterior,
)
from turbospec.models.step_cost import (
    CATCH_UP,
    DRAFT,
    DRAFT_CONTEXT,
    PASSES,
    PIECEWISE,
    ROWS,
    SIZE,
    StepCost,
    learn_step,
    target_features,
)
from turbospec.planning.gain_histogram import (
    LinearCosts,
    best_padded,
    best_plan,
    count_gains,
    draft_lengths,
    no_draft_seconds,
    plan_seconds,
    spread_fixed_costs,
)
from turbospec.planning.objective import (
    StepShape,
    catch_up_seconds,
    charge_catch_up,
    expected_costs,
    expected_gain,
    plan_features,
    step_costs,
    sum_up,
    waiting_factor,
    with_start,
)
from turbospec.planning.slo import max_seconds
from turbospec.policy.adaptive.constants import Constants
from turbospec.runtime.kernels import compiled

SERVER = np.dtype(
    [
        ("unforeseen_share", np.float64),
        ("unforeseen_tokens", np.float64),
        ("budget", np.float64),
        ("budget_limit", np.float64),
        ("considered_at", np.int64),
        ("drafted_at", np.int64),
    ]
)


class Server(Protocol):
    """State of the policy beside its models, one record of `SERVER`."""

    unforeseen_share: float
    """Share of steps that requests join after the plan was made."""
    unforeseen_tokens: float
    """Mean prompt tokens of these requests per step."""
    budget: float
    """Seconds that experiments may lose."""
    budget_limit: float
    """Largest budget; 0 before the first step."""
    considered_at: int
    """Last step in which no experiment was worth its loss."""
    drafted_at: int
    """Last step that drafted."""


class Requests(NamedTuple):
    """Columns of a view, (n,) each."""

    rows: IntArray
    phase: IntArray
    context_tokens: IntArray
    tokens_left: IntArray
    lag_tokens: IntArray
    class_ids: IntArray
    limits: IntArray


class StepFacts(NamedTuple):
    """Other fields of a view."""

    step: int
    prefill_tokens: int
    drafter_prefill_tokens: int
    """0 where the drafter prefills every prompt, whether or not the step drafts."""
    admitted_requests: int
    waiting_seconds: float
    draft_before_emit: bool
    parallel_drafter: bool
    batch_drafter: bool
    first_pass_every_step: bool


class Decision(NamedTuple):
    """A plan and what it was made with."""

    draft_lengths: IntArray
    padded_length: int
    settled: bool
    """Whether no draft would pay even if all estimates were better by `Constants.deviations`."""
    tokens: float
    """Expected tokens of the step."""
    seconds: float
    """Expected duration."""
    price: float
    """λ, tokens/s."""
    decoding: int
    drafting: int
    """Requests that draft."""
    experiment_seconds: float
    """What an experiment adds to the best plan's time; 0 for none."""
    experiment_gain: float
    """Tokens that the best plan would have gained, where an experiment runs."""


class _Step(NamedTuple):
    """What experiments are weighed by."""

    shape: StepShape
    costs: LinearCosts
    price: float
    noise: float
    max_seconds: float
    best: IntArray
    padded_length: int
    value: float
    """Of the best plan, tokens."""
    seconds: float
    """Of the best plan, with all catching up."""


@compiled
def decide(
    cost_state: Sequence[StepCost],
    server_state: Sequence[Server],
    terms: Terms,
    work: FloatArray,
    counts: IntArray,
    sums: FloatArray,
    requests: Requests,
    facts: StepFacts,
    graph_lengths: IntArray,
    slack: FloatArray,
    first_token_weight: float,
    constants: Constants,
) -> Decision:
    """Choose a step's draft lengths.

    Args:
        cost_state: (1,) `STEP_COST`.
        server_state: (1,) `SERVER`.
        terms: of the acceptance model.
        work: (3, at least n, K + 3) scratch space.
        counts, sums: (K, BINS) scratch space.
        requests, facts, graph_lengths: of the view.
        slack: (n,) seconds within which the step must end for each request; empty for no SLO.
        first_token_weight: a setting.
        constants: of the policy.
    """
    requests, facts, constants, terms = Requests(*requests), StepFacts(*facts), Constants(*constants), Terms(*terms)
    cost, server = cost_state[0], server_state[0]
    weights, lag, limits = cost.weights, requests.lag_tokens, requests.limits
    shape = sum_up(
        requests.phase,
        requests.context_tokens,
        lag,
        limits,
        facts.prefill_tokens,
        facts.parallel_drafter,
        facts.batch_drafter,
        facts.first_pass_every_step,
        graph_lengths,
    )
    n, depth, base = shape.requests, shape.depth, float(shape.decoding)
    lengths = np.zeros(n, np.int64)
    costs = step_costs(weights, shape, float(facts.prefill_tokens))
    if server.unforeseen_share > 0.0:
        unforeseen = server.unforeseen_tokens / server.unforeseen_share
        joined = step_costs(weights, shape, facts.prefill_tokens + unforeseen)
        costs = expected_costs(costs, joined, server.unforeseen_share)
    costs = with_start(costs, weights[CATCH_UP] * facts.drafter_prefill_tokens)
    plain_seconds = no_draft_seconds(costs)
    waiting = shape.prefilling + facts.admitted_requests + (shape.first_decode if facts.draft_before_emit else 0)
    if depth == 0:
        # A request that waits for its first token may draft once that is emitted.
        return Decision(lengths, 0, False, base, plain_seconds, 0.0, shape.decoding, 0, 0.0, 0.0)

    survival, net = work[0, :n, :depth], work[1, :n, :depth]
    first, charged, lag_seconds = work[0, :n, -1], work[0, :n, -2], work[0, :n, -3]
    fill_survival(terms, requests.rows, requests.class_ids, limits, 0.0, first, survival)
    count_gains(survival, depth, counts, sums)
    column_gains, drafting = np.zeros(depth), np.zeros(depth, np.int64)
    if shape.graphs:
        for j in range(depth):
            column_gains[j] = sums[j].sum()
        for i in range(n):
            for j in range(limits[i]):
                drafting[j] += 1

    # The price of time.
    decode = step_costs(weights, shape, 0.0)
    rate, _ = best_plan(counts, sums, depth, decode, -1.0, base, math.inf)
    if len(graph_lengths):
        padded_rate, _ = best_padded(column_gains, drafting, n, decode, -1.0, base, math.inf, 0.0, graph_lengths)
        rate = max(rate, padded_rate)
    factor = waiting_factor(shape, first_token_weight, plain_seconds, waiting, facts.waiting_seconds)
    price = rate * factor

    # The best plan.
    charge_catch_up(lag, requests.tokens_left, first, weights[CATCH_UP], constants.catch_up_tokens, charged)
    for i in range(n):
        lag_seconds[i] = lag[i] * weights[CATCH_UP]
    longest = max_seconds(slack, plain_seconds)
    padded = _best_lengths(
        survival,
        net,
        depth,
        counts,
        sums,
        costs,
        price,
        charged,
        longest,
        column_gains,
        drafting,
        n,
        graph_lengths,
        lengths,
    )
    if not math.isinf(longest):
        padded = _within(lengths, padded, costs, lag_seconds, longest)
    gain = expected_gain(survival, lengths)
    step_seconds = plan_seconds(costs, lengths, padded)
    value = gain - price * (step_seconds + catch_up_seconds(charged, lengths))
    if value <= -price * plain_seconds:
        lengths[:] = 0
        padded, gain, step_seconds, value = 0, 0.0, plain_seconds, -price * plain_seconds
    seconds = step_seconds + catch_up_seconds(lag_seconds, lengths)
    number = int(np.count_nonzero(lengths))
    refused = facts.step < server.considered_at + constants.pause_steps
    best = Decision(lengths, padded, False, base + gain, seconds, price, shape.decoding, number, 0.0, 0.0)

    # Experiments.
    if waiting or server.budget <= 0.0 or refused:
        return best
    step = _Step(shape, costs, price, cost.noise[0], longest, lengths, padded, value, seconds)
    tried, padded, worth = _plain(cost.covariance, step, lag, constants, plain_seconds, server.budget)
    longer, longer_padded, longer_worth = _longer(
        cost.covariance,
        weights,
        terms,
        requests,
        step,
        work,
        counts,
        sums,
        drafting,
        graph_lengths,
        constants,
        server.budget,
    )
    if longer_worth > worth:
        tried, padded, worth = longer, longer_padded, longer_worth
    if worth <= 0.0:
        server.considered_at = facts.step
        settled = number == 0 and factor == 1.0 and longer_worth < 0.0
        return Decision(lengths, padded, settled, base + gain, seconds, price, shape.decoding, number, 0.0, 0.0)
    gain_tried = expected_gain(survival, tried)
    seconds_tried = plan_seconds(costs, tried, padded) + catch_up_seconds(lag_seconds, tried)
    return Decision(
        tried,
        padded,
        False,
        base + gain_tried,
        seconds_tried,
        price,
        shape.decoding,
        int(np.count_nonzero(tried)),
        seconds_tried - seconds,
        gain,
    )


@compiled
def _best_lengths(
    survival: FloatArray,
    net: FloatArray,
    depth: int,
    counts: IntArray,
    sums: FloatArray,
    costs: LinearCosts,
    price: float,
    fixed_seconds: FloatArray,
    max_seconds: float,
    column_gains: FloatArray,
    drafting: IntArray,
    n: int,
    graph_lengths: IntArray,
    lengths: IntArray,
) -> int:
    """Fill (n,) `lengths`; returns the padded length. `counts` and `sums` are of the survival, and are overwritten."""
    total_fixed = 0.0
    for i in range(n):
        if survival[i, 0] > 0.0:
            total_fixed += fixed_seconds[i]
    gains = survival
    if total_fixed > 0.0:
        spread_fixed_costs(survival, depth, price * fixed_seconds, net)
        count_gains(net, depth, counts, sums)
        gains = net
    value, plan = best_plan(counts, sums, depth, costs, price, 0.0, max_seconds)
    if len(graph_lengths):
        padded_value, padded = best_padded(
            column_gains, drafting, n, costs, price, 0.0, max_seconds, total_fixed, graph_lengths
        )
        if padded_value > value:
            for i in range(n):
                length = 0
                while length < min(padded.padded_length, depth) and survival[i, length] > 0.0:
                    length += 1
                lengths[i] = length
            return padded.padded_length
    draft_lengths(gains, plan, lengths)
    if total_fixed > 0.0 and plan.depth:
        _drop_losers(survival, costs, price, fixed_seconds, lengths)
    return 0


@compiled
def _within(lengths: IntArray, padded: int, costs: LinearCosts, lag_seconds: FloatArray, longest: float) -> int:
    """Leave out the requests with most to catch up, until the step is short enough; returns the padded length."""
    while lengths.any():
        seconds, last = plan_seconds(costs, lengths, padded), -1
        for i in range(len(lengths)):
            if lengths[i] and lag_seconds[i] > 0.0:
                seconds += lag_seconds[i]
                if last < 0 or lag_seconds[i] > lag_seconds[last]:
                    last = i
        if seconds <= longest:
            break
        if last >= 0:
            lengths[last] = 0
        else:
            lengths[:] = 0
    return padded if lengths.any() else 0


@compiled
def _drop_losers(
    survival: FloatArray, costs: LinearCosts, price: float, fixed_seconds: FloatArray, lengths: IntArray
) -> None:
    """Leave out the requests whose gain does not cover their fixed cost; a plan may have cut their drafts short."""
    total = lengths.sum()
    if total == 0:
        return
    with_drafts = plan_seconds(costs, lengths, 0) - costs.draft_start - costs.piecewise
    with_drafts -= costs.draft_pass * lengths.max()
    each = (with_drafts - no_draft_seconds(costs) + costs.no_draft) / total
    for i in range(len(lengths)):
        if lengths[i] and fixed_seconds[i] > 0.0:
            gain = 0.0
            for j in range(lengths[i]):
                gain += survival[i, j]
            if gain < price * (fixed_seconds[i] + each * lengths[i]):
                lengths[i] = 0


@compiled
def _plain(
    covariance: FloatArray, step: _Step, lag: IntArray, constants: Constants, plain_seconds: float, budget: float
) -> tuple[IntArray, int, float]:
    """A step without drafts in place of one with drafts, and what it is worth, in tokens; 0 if nothing."""
    plain = np.zeros(len(lag), np.int64)
    difference = -step.price * plain_seconds - step.value
    if not step.best.any() or -difference / step.price > budget:
        return plain, 0, 0.0
    best, x = np.empty(SIZE), np.empty(SIZE)
    plan_features(best, step.shape, lag, step.best, step.padded_length)
    plan_features(x, step.shape, lag, plain, 0)
    learnt = step.price * learnt_seconds(covariance, step.noise * plain_seconds, x, x, best)
    return plain, 0, constants.horizon * improvement(difference, learnt) + difference


@compiled
def _longer(
    covariance: FloatArray,
    weights: FloatArray,
    terms: Terms,
    requests: Requests,
    step: _Step,
    work: FloatArray,
    counts: IntArray,
    sums: FloatArray,
    drafting: IntArray,
    graph_lengths: IntArray,
    constants: Constants,
    budget: float,
) -> tuple[IntArray, int, float]:
    """Drafts for more requests, or one token longer, and what they are worth, in tokens.

    The worth is 0 where they cost more than they show, and -1 where no draft would pay with better estimates either.
    """
    shape, best, lag = step.shape, step.best, requests.lag_tokens
    n, depth = shape.requests, shape.depth
    survival, net, better = work[0, :n, :depth], work[1, :n, :depth], work[2, :n, :depth]
    charged, lag_seconds = work[0, :n, -2], work[0, :n, -3]
    fill_survival(
        terms,
        requests.rows,
        requests.class_ids,
        requests.limits,
        constants.deviations,
        work[2, :n, -1],
        better,
    )
    deepest = min(best.max() + 1, depth)
    low = weights.copy()
    for i in range(DRAFT, SIZE):
        spread = constants.deviations * math.sqrt(max(covariance[i, i], 0.0))
        low[i] = max(weights[i] - spread, 0.0)
    base = step.costs
    hoped = step_costs(low, shape, 0.0)
    costs = LinearCosts(
        base.slopes,
        base.floor,
        base.base_tokens,
        base.no_draft,
        base.piecewise,
        hoped.draft_start,
        hoped.draft_pass,
        hoped.draft_token,
    )
    better[:, deepest:] = 0.0
    count_gains(better, depth, counts, sums)
    column_gains, cheaper = np.zeros(depth), np.zeros(n)
    if shape.graphs:
        for j in range(depth):
            column_gains[j] = sums[j].sum()
    for i in range(n):
        cheaper[i] = charged[i] * low[CATCH_UP] / max(weights[CATCH_UP], 1e-12)
    target = np.zeros(n, np.int64)
    padded = _best_lengths(
        better,
        net,
        depth,
        counts,
        sums,
        costs,
        step.price,
        cheaper,
        step.max_seconds,
        column_gains,
        drafting,
        n,
        graph_lengths,
        target,
    )
    more = np.flatnonzero(target > best)
    chosen, chosen_padded, most = best, 0, 0.0
    if len(more) == 0:
        return chosen, 0, -1.0
    more = more[np.argsort(lag_seconds[more], kind="mergesort")]
    value = expected_gain(survival, target)
    value -= step.price * (plan_seconds(base, target, padded) + catch_up_seconds(charged, target))
    difference = value - step.value
    # What drafts tell about acceptance: the gain hidden from the mean, moved by so many outcomes.
    hidden, variance = expected_gain(better, target), 0.0
    for i in range(n):
        for j in range(min(target[i], depth)):
            hidden -= min(survival[i, j], better[i, j])
        own = posterior(terms.requests, requests.rows[i], between_request_variance(terms))[1]
        own += posterior(terms.classes, requests.class_ids[i] % MAX_CLASSES, CLASS_PRIOR_VARIANCE)[1]
        variance += (terms.level[1] + own / n) / n
    hidden /= constants.deviations
    none_drafted = not best.any()
    x, target_x, best_x = np.empty(SIZE), np.empty(SIZE), np.empty(SIZE)
    plan_features(target_x, shape, lag, target, padded)
    plan_features(best_x, shape, lag, best, step.padded_length)
    size = 1
    while True:
        size = min(size, len(more))
        lengths = best.copy()
        lengths[more[:size]] = target[more[:size]]
        with_padding = padded if size == len(more) and lengths.max() <= padded else 0
        seconds = plan_seconds(base, lengths, with_padding)
        whole_seconds = seconds + catch_up_seconds(lag_seconds, lengths)
        lost = whole_seconds - step.seconds
        lost -= (expected_gain(survival, lengths) - expected_gain(survival, best)) / step.price
        if lost > budget or whole_seconds > step.max_seconds:
            break
        outcomes = lengths.sum() if none_drafted else size
        seen = constants.outcome_variance * variance * outcomes
        learnt = hidden * math.sqrt(seen / (1.0 + seen))
        plan_features(x, shape, lag, lengths, with_padding)
        shown = step.price * learnt_seconds(covariance, step.noise * whole_seconds, x, target_x, best_x)
        worth = constants.horizon * improvement(difference, math.hypot(shown, learnt)) - lost * step.price
        if worth > most:
            chosen, chosen_padded, most = lengths, with_padding, worth
        if size == len(more):
            break
        size *= 4
    return chosen, chosen_padded, most


class Measured(NamedTuple):
    """Scalars of an outcome, and what the plan knew."""

    step: int
    requests: int
    tokens_batched: int
    context_tokens: int
    prefill_tokens: int
    planned_prefill_tokens: int
    piecewise: bool
    draft_context_tokens: int
    catch_up_tokens: int
    draft_seconds: float
    step_seconds: float
    reused_plan_steps: int
    reused_plan_tokens: int
    reused_plan_seconds: float
    price: float
    experiment_seconds: float
    experiment_gain: float


@compiled
def learn(
    cost_state: Sequence[StepCost],
    server_state: Sequence[Server],
    terms: Terms,
    drafts: VerifiedDrafts,
    draft_rows: IntArray,
    measured: Measured,
    memory: Memory,
    probe_share: float,
    constants: Constants,
) -> None:
    """Learn from one outcome: budget, step cost, running means, acceptance."""
    measured, constants, terms = Measured(*measured), Constants(*constants), Terms(*terms)
    drafts, memory = VerifiedDrafts(*drafts), Memory(*memory)
    cost, server = cost_state[0], server_state[0]
    seconds = measured.step_seconds
    if server.budget_limit == 0.0 and measured.prefill_tokens == 0:
        server.budget_limit = server.budget = constants.budget_steps * seconds
    if measured.experiment_seconds != 0.0:
        gained = drafts.accepted.sum() - measured.experiment_gain
        lost = measured.experiment_seconds - gained / measured.price
        server.budget -= max(lost, 0.1 * abs(measured.experiment_seconds))
    server.budget += probe_share * (seconds + measured.reused_plan_seconds)
    server.budget = min(server.budget, server.budget_limit)
    passes = len(draft_rows)
    if seconds > 0.0:
        x = np.zeros(SIZE)
        context, requests = float(measured.context_tokens), float(measured.requests)
        if measured.reused_plan_steps:
            tokens = measured.reused_plan_tokens / measured.reused_plan_steps
            target_features(x, tokens, context, requests, 0.0)
            learn_step(cost, x, max(measured.reused_plan_seconds / measured.reused_plan_steps, 1e-9), 0.0, 0.0)
        target_features(x, float(measured.tokens_batched), context, requests, float(measured.prefill_tokens))
        x[PIECEWISE] = 1.0 if measured.piecewise else 0.0
        if passes:
            rows = float(draft_rows.sum())
            x[DRAFT] = 1.0
            x[PASSES], x[ROWS], x[DRAFT_CONTEXT] = passes, rows, measured.draft_context_tokens
            x[CATCH_UP] = measured.catch_up_tokens
        learn_step(cost, x, seconds, measured.draft_seconds, constants.drift)
    weight, unforeseen = constants.mean_weight, max(measured.prefill_tokens - measured.planned_prefill_tokens, 0)
    server.unforeseen_share += weight * ((unforeseen > 0) - server.unforeseen_share)
    server.unforeseen_tokens += weight * (unforeseen - server.unforeseen_tokens)
    drafted = passes > 0 or drafts.drafted.any()
    if not drafted:
        idle = 1 + measured.reused_plan_steps
        terms.level[1] = min(terms.level[1] * math.exp(idle / constants.idle_steps), LEVEL_PRIOR_VARIANCE)
        return
    idle = max(measured.step - server.drafted_at - 1, 0)
    terms.level[0] *= math.exp(-idle / constants.idle_level_steps)
    observe_drafts(terms, drafts, memory, idle)
    server.drafted_at = measured.step
