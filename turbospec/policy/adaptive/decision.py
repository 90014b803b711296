"""One decision of `adaptive`, compiled: price of time, best plan, experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import score_buckets
from turbospec.models.step_cost import CATCH_UP, PREFILL_TOKENS
from turbospec.planning.best_lengths import best_lengths, best_rate, consider, empty_gains, shorten
from turbospec.planning.gain_histogram import LONGEST_GRAPH, no_draft_seconds, passes_run, plan_seconds
from turbospec.planning.objective import (
    catch_up_seconds,
    charge_catch_up,
    drafter_memory,
    expected_costs,
    expected_gain,
    long_run_costs,
    memory_price,
    prefill_factor,
    rate_without_drafter,
    step_costs,
    sum_up,
    waiting_factor,
    with_start,
)
from turbospec.planning.offers import by_request, list_offers
from turbospec.planning.slo import max_seconds
from turbospec.planning.token_weights import accepted_tokens, token_weights, update_tokens_per_step, weigh
from turbospec.policy.adaptive.appending import append_limits
from turbospec.policy.adaptive.confidence_gate import lengthen
from turbospec.policy.adaptive.experiments import Models, PlannedStep, Requests, estimate, more_drafts, without_drafts
from turbospec.policy.adaptive.state import TOKENS_PER_STEP, Shared, appended_terms, drafter_terms, lookup_terms
from turbospec.runtime.kernels import compiled, inlined

LENGTHS, SOURCES, APPEND_LIMITS, GATE_LIMITS = range(4)
"""Rows of the array that `decide` returns."""


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
    valid_steps: int
    """1; more where no draft would pay even if all estimates were better by a standard deviation."""
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
    added_seconds: float,
    first_token_weight: float,
) -> tuple[IntArray, int, int, int, float, float, float, int, int, float, float, int, bool]:
    """Choose a step's draft lengths.

    Args:
        state, request_state: of an `AdaptiveState`.
        work: (4, at least n + m, K + 3) scratch space, for n requests of which a look-up found something for m.
        counts, sums: (K + 1, BINS) scratch space.
        columns: those of `Requests`, without the last.
        lookup_scores: (n,) of the view; empty without a look-up.
        facts, graph_lengths: of the view.
        slack: (n,) seconds within which the step must end for each request; empty for no TPOT SLO.
        added_seconds: that drafts may add to the step; infinite for no TTFT SLO.
        first_token_weight: a setting.

    Returns:
        (4, n) draft lengths, sources, append limits and, with a gate, longest drafts; the padded length; the passes as
        in a `StepPlan`; the steps that may run on the plan; the other scalars of the `Choice` but for the last; tokens
        that may be appended in all; whether the plan has a gate.
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
        added_seconds,
        first_token_weight,
    )
    plan = np.empty((4, len(requests.rows)), np.int64)
    plan[LENGTHS], plan[SOURCES] = choice.draft_lengths, choice.sources
    plan[APPEND_LIMITS], plan[GATE_LIMITS] = choice.append_limits, choice.draft_lengths
    usual = choice.drafting > 0 and choice.padded_length == 0 and choice.experiment_seconds == 0.0
    gated = facts.may_gate and usual and shared.drafter.covariate_spread[1] > 0.0
    if gated:
        spare = choice.longest_seconds - choice.seconds
        lengthen(shared.cost.weights, requests, choice.sources, spare, plan[GATE_LIMITS])
    # A plain tuple: Python would make a named one by a function call.
    return (
        plan,
        choice.padded_length,
        _graph_of_passes(plan, choice.padded_length, facts.pass_graphs),
        choice.valid_steps,
        choice.tokens,
        choice.seconds,
        choice.price,
        choice.decoding,
        choice.drafting,
        choice.experiment_seconds,
        choice.experiment_gain,
        choice.append_limits.sum(),
        gated,
    )


@inlined
def _graph_of_passes(plan: IntArray, padded_length: int, pass_graphs: int) -> int:
    """The length whose graph of passes the drafter is to replay; 0 for none."""
    depth = 0
    for i in range(plan.shape[1]):
        if not plan[SOURCES, i]:
            depth = max(depth, plan[LENGTHS, i])
    if depth == 0:
        return 0
    passes = passes_run(max(depth, padded_length), pass_graphs)
    return passes if passes <= LONGEST_GRAPH and pass_graphs >> passes & 1 else 0


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
    added_seconds: float,
    first_token_weight: float,
) -> Choice:
    """The arguments are as in `decide`."""
    server, cost, constants = shared.server, shared.cost, shared.constants
    models = Models(drafter_terms(shared, request_state), lookup_terms(shared, request_state))
    tokens_per_step = request_state[:, TOKENS_PER_STEP]
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
    costs = step_costs(weights, shape, float(facts.prefill_tokens))
    if server.unforeseen_share > 0.0:
        unforeseen = server.unforeseen_tokens / server.unforeseen_share
        joined = step_costs(weights, shape, facts.prefill_tokens + unforeseen)
        costs = expected_costs(costs, joined, server.unforeseen_share)
    plain_seconds = no_draft_seconds(costs)
    waiting = shape.without_token + facts.admitted_requests + (shape.first_decode if facts.draft_before_emit else 0)
    offers = list_offers(requests.limits, requests.lookup_lengths, requests.lookup_buckets)
    size, depth = len(offers.limits), offers.limits.max()
    if depth == 0:
        # A request that waits for its first token may draft once that is emitted.
        lengths = np.zeros(n, np.int64)
        return Choice(lengths, lengths, lengths, 0, 1, base, plain_seconds, 0.0, shape.decoding, 0, 0.0, 0.0, math.inf)

    survival, first, charged = work[0, :size, :depth], work[0, :size, -1], work[0, :size, -2]
    lag_seconds, offered = work[0, :size, -3], survival if size == n else work[3, :size, :depth]
    token_weight = token_weights(requests.rows, requests.phase, tokens_per_step)
    estimate(models, requests, offers, 0.0, first, survival)
    weigh(survival, offers, token_weight)
    charged[n:], lag_seconds[n:], lag_seconds[:n] = 0.0, 0.0, lag * weights[CATCH_UP]
    charge_catch_up(lag, requests.tokens_left, first, weights[CATCH_UP], constants.catch_up_horizon, charged)
    gains = empty_gains(offers, survival, offered, work[1, :size, :depth], counts, sums, graph_lengths)
    rate_costs = step_costs(weights, shape, 0.0)
    if server.prompt_share > 0.0:
        prompts = server.prompt_tokens / server.prompt_share
        joined = step_costs(weights, shape, prompts)
        rate_costs = long_run_costs(rate_costs, joined, weights[PREFILL_TOKENS], server.prompt_share)
    memory = drafter_memory(weights, shape, costs, server.drafter_kv_share, server.drafting_share)
    idle_rate = rate_without_drafter(memory, base, no_draft_seconds(rate_costs))
    rate_costs = with_start(rate_costs, memory_price(memory.running, memory, idle_rate))
    rate, least = best_rate(gains, rate_costs, base, charged)
    rate = max(rate, idle_rate)
    price = rate * waiting_factor(shape, first_token_weight, plain_seconds, waiting, facts.waiting_seconds)
    price *= prefill_factor(server.limited_share, shape.decoding, constants.mean_weight)

    longest = max_seconds(slack, plain_seconds, added_seconds)
    prefill, not_taken = weights[CATCH_UP] * facts.drafter_prefill_tokens, 0.0
    if math.isinf(longest):  # an SLO limits the time that the step takes
        not_taken = memory_price(memory.waiting + memory.running, memory, rate)
        # If drafting goes on, prompts that this step's passes leave out are computed later, when nobody may wait.
        not_taken -= min(server.drafting_share * rate / price, 1.0) * prefill
    costs = with_start(costs, prefill + not_taken)
    if size > n:
        consider(gains, costs, price, least, charged)
    lengths = np.zeros(size, np.int64)
    padded = best_lengths(gains, costs, price, charged, longest, lengths)
    if not math.isinf(longest):
        padded = shorten(lengths, n, padded, costs, lag_seconds, longest)
    step_seconds = plan_seconds(costs, lengths, n, padded)
    value = expected_gain(survival, lengths) - price * (step_seconds + catch_up_seconds(charged, lengths))
    if value <= -price * plain_seconds:
        lengths[:] = 0
        padded, step_seconds, value = 0, plain_seconds, -price * plain_seconds
    seconds = step_seconds + catch_up_seconds(lag_seconds, lengths)
    each, sources = by_request(offers, lengths)
    accepted = accepted_tokens(survival, offers, token_weight, lengths)
    update_tokens_per_step(tokens_per_step, requests.rows, requests.phase, accepted, constants.pace_weight)
    gain = accepted.sum()
    added = np.zeros(n, np.int64)
    if facts.longest_appended > 0 and not len(graph_lengths) and math.isinf(longest):
        share, most = server.found_share, facts.longest_appended
        added = append_limits(
            appended_terms(shared, request_state), requests, each, sources, token_weight, costs, price, share, most
        )
    drafting, decoding = int(np.count_nonzero(lengths)), shape.decoding
    in_full = seconds - (not_taken if lengths[:n].any() else 0.0)
    expected, no_experiment = (base + gain, in_full, price, decoding), (0.0, 0.0, longest)
    paused_steps = server.refused_at + constants.pause_steps - facts.step
    refused = paused_steps > 0
    valid_steps = paused_steps if refused and server.settled and drafting == 0 and not waiting else 1
    best = Choice(each, sources, added, padded, valid_steps, *expected, drafting, *no_experiment)
    # Without a budget no experiment runs. Whether one would be wanted decides whether a plan without drafts is reused.
    in_debt = server.budget <= 0.0
    if waiting or refused or (in_debt and drafting > 0):
        return best

    step = PlannedStep(
        shape,
        costs,
        gains,
        token_weight,
        price,
        charged,
        lag_seconds,
        longest,
        plain_seconds,
        lengths,
        padded,
        value,
        seconds,
    )
    tried = without_drafts(cost.covariance, cost.noise[0], step, lag, server.budget, constants)
    better = work[2, :size, : depth + 1]
    more = more_drafts(
        weights, cost.covariance, cost.noise[0], models, requests, step, better, server.budget, constants
    )
    server.saving = more.unaffordable_seconds
    if more.worth > tried.worth:
        tried = more
    if in_debt or not tried.worth > 0.0:
        server.refused_at, server.settled = facts.step, drafting == 0 and more.worth < 0.0
        valid_steps = constants.pause_steps if server.settled else 1
        return Choice(each, sources, added, padded, valid_steps, *expected, drafting, *no_experiment)
    chosen, padded = tried.draft_lengths, tried.padded_length
    tokens = base + accepted_tokens(survival, offers, token_weight, chosen).sum()
    tried_seconds = plan_seconds(costs, chosen, n, padded) + catch_up_seconds(lag_seconds, chosen)
    each, sources = by_request(offers, chosen)
    in_full = tried_seconds - (not_taken if chosen[:n].any() else 0.0)
    expected, shown = (tokens, in_full, price, decoding), (tried_seconds - seconds, gain, longest)
    none, drafting = np.zeros(n, np.int64), int(np.count_nonzero(chosen))
    return Choice(each, sources, none, padded, 1, *expected, drafting, *shown)
