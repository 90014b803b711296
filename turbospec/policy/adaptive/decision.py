"""One decision of `adaptive`, compiled: price of time, best plan, experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import score_buckets
from turbospec.models.step_cost import CATCH_UP, PREFILL_TOKENS, StepCost
from turbospec.planning.best_lengths import Gains, best_lengths, best_rate, consider, shorten, uncounted_gains
from turbospec.planning.gain_histogram import (
    LinearCosts,
    drafter_work,
    graph_of_passes,
    no_draft_seconds,
    plan_seconds,
)
from turbospec.planning.objective import (
    DrafterMemory,
    StepShape,
    charge_catch_up,
    drafter_memory,
    expected_costs,
    expected_gain,
    long_run_costs,
    memory_price,
    prefill_factor,
    rate_without_drafter,
    step_costs,
    sum_of_drafts,
    sum_up,
    waiting_factor,
    with_start,
)
from turbospec.planning.offers import by_request, list_offers
from turbospec.planning.slo import longest_step
from turbospec.planning.token_weights import accepted_tokens, token_weights, update_tokens_per_step, weigh
from turbospec.policy.adaptive.appending import append_limits
from turbospec.policy.adaptive.confidence_gate import lengthen
from turbospec.policy.adaptive.constants import Constants
from turbospec.policy.adaptive.experiments import (
    Experiment,
    Models,
    PlannedStep,
    Requests,
    estimate,
    more_drafts,
    no_experiment,
    without_drafts,
)
from turbospec.policy.adaptive.state import TOKENS_PER_STEP, Server, Shared, appended_terms, drafter_terms, lookup_terms
from turbospec.runtime.kernels import compiled, inlined

LENGTHS, SOURCES, APPEND_LIMITS, GATE_LIMITS = range(4)
"""Rows of the array that `decide` returns."""


class StepFacts(NamedTuple):
    """Scalars of a view, and what the policy derives from it."""

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
    may_gate: bool
    """Whether drafts may end on the drafter's confidence."""
    longest_appended: int
    """Longest draft with appended tokens; 0 where the engine appends none."""
    largest_graph: int
    pass_graphs: int
    """As in `LinearCosts`."""


class Choice(NamedTuple):
    """A plan, and what it was made with."""

    draft_lengths: IntArray
    sources: IntArray
    """(n,) of the drafts."""
    append_limits: IntArray
    """(n,) most tokens that the look-up appends to each draft of the drafter."""
    padded_length: int
    passes: int
    """As in a `StepPlan`."""
    valid_steps: int
    """1; more where no draft would pay even if all estimates were better by a standard deviation."""
    tokens: float
    """Expected tokens of the requests past their prompt, without appended tokens and what a gate adds."""
    seconds: float
    """Expected duration."""
    price: float
    """λ, tokens/s."""
    decoding: int
    drafting: int
    """Requests that draft."""
    experiment: bool
    """Whether an experiment runs in place of the best plan."""
    experiment_seconds: float
    """What it adds to the best plan's time, with the prices that are part of the costs; 0 for none."""
    best_accepted: float
    """Draft tokens that the best plan is expected to have accepted."""
    reserved: float
    """Seconds of the budget that the experiment is expected to lose; 0 for none."""
    longest_seconds: float
    """Longest step that an objective allows; infinite without one, and where nothing can be drafted."""


@compiled
def decide(
    state: Sequence[Shared],
    request_state: FloatArray,
    work: FloatArray,
    counts: IntArray,
    sums: FloatArray,
    columns: tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray],
    lookup_scores: FloatArray,
    facts: StepFacts,
    graph_lengths: IntArray,
    slack: FloatArray,
    tpot_seconds: float,
    added_seconds: float,
    first_token_weight: float,
) -> tuple[IntArray, int, int, int, float, float, float, int, int, bool, float, float, float, int, bool]:
    """Choose a step's draft lengths.

    Args:
        state, request_state: of an `AdaptiveState`.
        work: (4, at least n + m, K + 1) scratch space, for n requests of which a look-up found something for m.
        counts, sums: (K + 1, BINS) scratch space.
        columns: those of `Requests`, without the last.
        lookup_scores: (n,) of the view; empty without a look-up.
        facts: of the view.
        graph_lengths: of the view.
        slack: (n,) of `TpotSlo`; empty for no TPOT SLO.
        tpot_seconds: the TPOT SLO; infinite for none.
        added_seconds: that drafts may add to the step; infinite for no TTFT SLO.
        first_token_weight: a setting.

    Returns:
        (4, n) draft lengths, sources, append limits and, with a gate, longest drafts; the scalars of the `Choice` but
        for the last; tokens that may be appended in all; whether the plan has a gate.
    """
    requests = Requests(*columns, score_buckets(lookup_scores))
    facts, shared = StepFacts(*facts), state[0]
    choice = _choose(
        shared,
        request_state,
        work,
        counts,
        sums,
        requests,
        facts,
        graph_lengths,
        slack,
        tpot_seconds,
        added_seconds,
        first_token_weight,
    )
    plan = np.empty((4, len(requests.rows)), np.int64)
    plan[LENGTHS], plan[SOURCES] = choice.draft_lengths, choice.sources
    plan[APPEND_LIMITS], plan[GATE_LIMITS] = choice.append_limits, choice.draft_lengths
    usual = choice.drafting > 0 and choice.padded_length == 0 and not choice.experiment
    gated = facts.may_gate and usual and shared.drafter.covariate_spread[1] > 0.0
    if gated:
        spare = choice.longest_seconds - choice.seconds
        lengthen(shared.cost.weights, requests, choice.sources, spare, plan[GATE_LIMITS])
    # A plain tuple: Python would make a named one by a function call.
    return (
        plan,
        choice.padded_length,
        choice.passes,
        choice.valid_steps,
        choice.tokens,
        choice.seconds,
        choice.price,
        choice.decoding,
        choice.drafting,
        choice.experiment,
        choice.experiment_seconds,
        choice.best_accepted,
        choice.reserved,
        choice.append_limits.sum(),
        gated,
    )


@inlined
def _choose(
    shared: Shared,
    request_state: FloatArray,
    work: FloatArray,
    counts: IntArray,
    sums: FloatArray,
    requests: Requests,
    facts: StepFacts,
    graph_lengths: IntArray,
    slack: FloatArray,
    tpot_seconds: float,
    added_seconds: float,
    first_token_weight: float,
) -> Choice:
    """The arguments are as in `decide`."""
    server, cost, constants = shared.server, shared.cost, shared.constants
    weights, lag = cost.weights, requests.lag_tokens
    shape = sum_up(
        requests.phase,
        requests.emitted_tokens,
        requests.context_tokens,
        facts.prefill_tokens,
        facts.parallel_drafter,
        facts.batch_drafter,
        facts.first_pass_every_step,
        graph_lengths,
        facts.largest_graph,
        facts.pass_graphs,
    )
    n, base = shape.requests, float(shape.decoding)
    costs = _with_joining_prompts(weights, server, shape)
    plain_seconds = no_draft_seconds(costs)
    offers = list_offers(requests.limits, requests.lookup_lengths, requests.lookup_buckets)
    size, depth = len(offers.limits), offers.limits.max()
    if depth == 0:
        return _nothing_to_draft(shape, plain_seconds)
    if server.budget_limit > 0.0:
        server.budget_limit = constants.budget_steps * plain_seconds
        server.budget = min(server.budget, max(server.budget_limit, server.saving))

    # What each draft token gains, and what each draft is charged.
    models = Models(drafter_terms(shared, request_state), lookup_terms(shared, request_state))
    tokens_per_step = request_state[:, TOKENS_PER_STEP]
    token_weight = token_weights(requests.rows, requests.phase, tokens_per_step)
    survival, first = work[0, :size, :depth], work[0, :size, -1]
    offered = survival if size == n else work[3, :size, :depth]
    # Not columns of the scratch space: numba would compile the planner a second time, for strided charges.
    charged, lag_seconds = np.zeros(size), np.zeros(size)
    estimate(models, requests, offers, 0.0, first, survival)
    weigh(survival, offers, token_weight)
    lag_seconds[:n] = lag * weights[CATCH_UP]
    charge_catch_up(lag, requests.tokens_left, first, weights[CATCH_UP], constants.catch_up_horizon, charged)
    gains = uncounted_gains(offers, survival, offered, work[1, :size, :depth], counts, sums, graph_lengths)

    # The price of time λ.
    memory = drafter_memory(weights, shape, costs, server.drafter_kv_share, server.drafting_share)
    rate, least = _long_run_rate(weights, server, shape, memory, gains, charged)
    waiting = shape.without_token + facts.admitted_requests + (shape.first_decode if facts.draft_before_emit else 0)
    price = rate * waiting_factor(shape, first_token_weight, plain_seconds, waiting, facts.waiting_seconds)
    price *= prefill_factor(server.limited_share, shape.decoding, constants.mean_weight)

    # The best plan.
    has_slo = len(slack) > 0 or not math.isinf(added_seconds)
    prefill_seconds, priced_seconds = weights[CATCH_UP] * facts.drafter_prefill_tokens, 0.0
    # An SLO is compared with seconds: under one the costs hold no prices.
    if not has_slo:
        priced_seconds = memory_price(memory.waiting + memory.running, memory, rate)
        # If drafting goes on, prompts that this step's passes leave out are computed later, when nobody may wait.
        priced_seconds -= server.drafting_share * rate / price * prefill_seconds
    costs = with_start(costs, prefill_seconds + priced_seconds)
    if size > n:
        consider(gains, costs, price, least, charged)
    longest, limited = plain_seconds + added_seconds, False
    step = _with_best_plan(shape, costs, gains, token_weight, price, charged, lag_seconds, longest, plain_seconds)
    if len(slack):
        left, reserve = requests.tokens_left, _prompt_seconds(weights, server, shape)
        allowed = longest_step(slack, left, step.accepted, plain_seconds, tpot_seconds, reserve)
        limited = step.seconds > allowed
        if limited:
            # A shorter plan has fewer tokens accepted: none is counted on.
            allowed = longest_step(slack, left, np.zeros(n), plain_seconds, tpot_seconds, reserve)
            limit = min(longest, allowed)
            step = _with_best_plan(shape, costs, gains, token_weight, price, charged, lag_seconds, limit, plain_seconds)
        longest = min(longest, allowed)
    update_tokens_per_step(tokens_per_step, requests.rows, requests.phase, step.accepted, constants.pace_weight)

    # An experiment in its place.
    chosen, experiment, any_drafts = no_experiment(step), False, step.best.any()
    valid_steps, paused_steps = 1, server.refused_at + constants.pause_steps - facts.step
    # None delays first tokens, unless they weigh little beside the requests that decode: with many requests nearly all
    # steps have some. Without a budget no experiment runs. Whether one would be wanted decides whether a plan without
    # drafts is reused.
    in_debt = server.budget <= 0.0
    if 0 < paused_steps <= constants.pause_steps:  # more where an engine's step numbers have gone back
        if server.settled and not any_drafts and not waiting:
            valid_steps = paused_steps
    elif first_token_weight * waiting <= constants.first_token_share * shape.decoding and not (in_debt and any_drafts):
        better = work[2, :size, : depth + 1]
        tried, adds_drafts = _best_experiment(cost, server, models, requests, step, better, longest, constants)
        experiment = tried.worth > 0.0 and not in_debt
        if experiment:
            chosen = tried
            # Its outcome may arrive after the next plans are made, which must not spend the same budget.
            server.budget -= chosen.loss
        else:
            server.refused_at, server.settled = facts.step, not (adds_drafts or any_drafts or limited or waiting > 0)
            valid_steps = constants.pause_steps if server.settled else 1

    lengths, padded, seconds = chosen.draft_lengths, chosen.padded_length, chosen.seconds
    if lengths[:n].any():
        seconds -= priced_seconds
    each, sources = by_request(offers, lengths)
    appended = np.zeros(n, np.int64)
    if facts.longest_appended > 0 and not experiment and not len(graph_lengths) and not has_slo:
        terms, share, most = appended_terms(shared, request_state), server.found_share, facts.longest_appended
        appended = append_limits(terms, requests, each, sources, token_weight, costs, price, share, most)
    return Choice(
        draft_lengths=each,
        sources=sources,
        append_limits=appended,
        padded_length=padded,
        passes=graph_of_passes(drafter_work(lengths, n)[1], padded, facts.pass_graphs),
        valid_steps=valid_steps,
        tokens=base + chosen.accepted,
        seconds=seconds,
        price=price,
        decoding=shape.decoding,
        drafting=int(np.count_nonzero(lengths)),
        experiment=experiment,
        experiment_seconds=chosen.seconds - step.seconds,
        best_accepted=step.accepted.sum(),
        reserved=chosen.loss,
        longest_seconds=longest,
    )


@inlined
def _nothing_to_draft(shape: StepShape, plain_seconds: float) -> Choice:
    """No drafts, and no plan for later steps: a request in prefill may draft once its first token is emitted."""
    none = np.zeros(shape.requests, np.int64)
    return Choice(
        draft_lengths=none,
        sources=none,
        append_limits=none,
        padded_length=0,
        passes=0,
        valid_steps=1,
        tokens=float(shape.decoding),
        seconds=plain_seconds,
        price=0.0,
        decoding=shape.decoding,
        drafting=0,
        experiment=False,
        experiment_seconds=0.0,
        best_accepted=0.0,
        reserved=0.0,
        longest_seconds=math.inf,
    )


@inlined
def _with_joining_prompts(weights: FloatArray, server: Server, shape: StepShape) -> LinearCosts:
    """The costs of the step: the mean of those with and without requests that join it after it was planned."""
    costs = step_costs(weights, shape, float(shape.prefill_tokens))
    if server.unforeseen_share > 0.0:
        unforeseen = server.unforeseen_tokens / server.unforeseen_share
        joined = step_costs(weights, shape, shape.prefill_tokens + unforeseen)
        costs = expected_costs(costs, joined, server.unforeseen_share)
    return costs


@inlined
def _costs_with_prompts(weights: FloatArray, server: Server, shape: StepShape) -> LinearCosts:
    """The costs of the step with the mean prompt tokens of steps that have some; `prompt_share` is above 0."""
    return step_costs(weights, shape, server.prompt_tokens / server.prompt_share)


@inlined
def _long_run_rate(
    weights: FloatArray, server: Server, shape: StepShape, memory: DrafterMemory, gains: Gains, charged: FloatArray
) -> tuple[float, float]:
    """r, the best rate of the step's requests in the long run, and the smallest gain as in `best_rate`."""
    costs, base = step_costs(weights, shape, 0.0), float(shape.decoding)
    if server.prompt_share > 0.0:
        joined = _costs_with_prompts(weights, server, shape)
        costs = long_run_costs(costs, joined, weights[PREFILL_TOKENS], server.prompt_share)
    idle_rate = rate_without_drafter(memory, base, no_draft_seconds(costs))
    costs = with_start(costs, memory_price(memory.running, memory, idle_rate))
    rate, least = best_rate(gains, costs, base, charged)
    return max(rate, idle_rate), least


@inlined
def _prompt_seconds(weights: FloatArray, server: Server, shape: StepShape) -> float:
    """Mean seconds that prompts add to a step that has some."""
    if server.prompt_share == 0.0:
        return 0.0
    joined = _costs_with_prompts(weights, server, shape)
    return no_draft_seconds(joined) - no_draft_seconds(step_costs(weights, shape, 0.0))


@compiled
def _with_best_plan(
    shape: StepShape,
    costs: LinearCosts,
    gains: Gains,
    token_weight: FloatArray,
    price: float,
    charged: FloatArray,
    lag_seconds: FloatArray,
    longest: float,
    plain_seconds: float,
) -> PlannedStep:
    """The step with its best plan.

    The gains are counted. `longest` is the longest step allowed, `plain_seconds` its `no_draft_seconds`, the other
    arguments are fields of that name.
    """
    n, lengths = shape.requests, np.zeros(len(charged), np.int64)
    padded = best_lengths(gains, costs, price, charged, longest, lengths)
    if not math.isinf(longest):
        padded = shorten(lengths, n, padded, costs, lag_seconds, longest)
    seconds = plan_seconds(costs, lengths, n, padded)
    value = expected_gain(gains.survival, lengths) - price * (seconds + sum_of_drafts(charged, lengths))
    if value <= -price * plain_seconds:
        lengths[:] = 0
        padded, seconds, value = 0, plain_seconds, -price * plain_seconds
    return PlannedStep(
        shape=shape,
        costs=costs,
        gains=gains,
        token_weights=token_weight,
        price=price,
        charged=charged,
        lag_seconds=lag_seconds,
        no_draft_seconds=plain_seconds,
        best=lengths,
        padded_length=padded,
        value=value,
        accepted=accepted_tokens(gains.survival, gains.offers, token_weight, lengths),
        seconds=seconds + sum_of_drafts(lag_seconds, lengths),
    )


@inlined
def _best_experiment(
    cost: StepCost,
    server: Server,
    models: Models,
    requests: Requests,
    step: PlannedStep,
    better: FloatArray,
    longest: float,
    constants: Constants,
) -> tuple[Experiment, bool]:
    """The experiment that is worth most in a step of at most `longest` seconds, and whether better estimates would add
    a draft; `better` is scratch space."""
    weights, covariance, noise, budget = cost.weights, cost.covariance, cost.noise[0], server.budget
    plain = without_drafts(covariance, noise, step, requests.lag_tokens, budget, constants)
    more = more_drafts(weights, covariance, noise, models, requests, step, better, budget, longest, False, constants)
    # Where drafting takes long to start, one token cannot pay, and to try one would show nothing of use.
    if not (more.best.worth > 0.0 or more.unaffordable_loss > 0.0 or step.shape.parallel_drafter or step.best.any()):
        more = more_drafts(weights, covariance, noise, models, requests, step, better, budget, longest, True, constants)
    server.saving = more.unaffordable_loss
    return more.best if more.best.worth > plain.worth else plain, more.adds_drafts
