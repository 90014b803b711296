"""One decision of `adaptive`, compiled: price of time, best plan, experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.logistic import Terms, forget
from turbospec.models.step_cost import CATCH_UP, StepCost
from turbospec.planning.best_lengths import best_lengths, best_rate, empty_gains, shorten
from turbospec.planning.gain_histogram import no_draft_seconds, plan_seconds
from turbospec.planning.objective import (
    catch_up_seconds,
    charge_catch_up,
    expected_costs,
    expected_gain,
    step_costs,
    sum_up,
    waiting_factor,
    with_start,
)
from turbospec.planning.offers import by_request, list_offers
from turbospec.planning.slo import max_seconds
from turbospec.planning.token_weights import accepted_tokens, token_weights, update_tokens_per_step, weigh
from turbospec.policy.adaptive.appending import append_limits
from turbospec.policy.adaptive.constants import Constants
from turbospec.policy.adaptive.experiments import Models, PlannedStep, Requests, estimate, more_drafts, without_drafts
from turbospec.runtime.kernels import compiled

SERVER = np.dtype(
    [
        ("unforeseen_share", np.float64),
        ("unforeseen_tokens", np.float64),
        ("budget", np.float64),
        ("budget_limit", np.float64),
        ("considered_at", np.int64),
        ("found_share", np.float64),
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
    """Largest budget; 0 before the first measured step without prompts."""
    considered_at: int
    """Last step in which no experiment was worth its loss."""
    found_share: float
    """Mean tokens that the look-up appended, as a share of those that the plan allowed."""


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
    longest_appended: int
    """Longest draft with appended tokens; 0 where the engine appends none."""


class Decision(NamedTuple):
    """A plan and what it was made with."""

    draft_lengths: IntArray
    sources: IntArray
    """(n,) of the drafts."""
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
    longest_seconds: float
    """Longest step that an objective allows; infinite without one, and where nothing can be drafted."""
    append_limits: IntArray
    """(n,) most tokens that the look-up appends to each draft of the drafter."""


@compiled
def decide(
    cost_state: Sequence[StepCost],
    server_state: Sequence[Server],
    terms: Terms,
    lookup_terms: Terms,
    appended_terms: Terms,
    tokens_per_step: FloatArray,
    new_rows: IntArray,
    work: FloatArray,
    counts: IntArray,
    sums: FloatArray,
    requests: Requests,
    facts: StepFacts,
    graph_lengths: IntArray,
    slack: FloatArray,
    added_seconds: float,
    first_token_weight: float,
    constants: Constants,
) -> Decision:
    """Choose a step's draft lengths.

    Args:
        cost_state: (1,) `STEP_COST`.
        server_state: (1,) `SERVER`.
        terms: of the drafter's acceptance model.
        lookup_terms: of the look-up's.
        appended_terms: of that of tokens which the look-up appends.
        tokens_per_step: (rows,) of each request's state; 0 where unknown.
        new_rows: of requests that have just been assigned their rows; what is there is forgotten.
        work: (4, at least n + m, K + 3) scratch space, for n requests of which a look-up found something for m.
        counts, sums: (K + 1, BINS) scratch space.
        requests, facts, graph_lengths: of the view.
        slack: (n,) seconds within which the step must end for each request; empty for no TPOT SLO.
        added_seconds: that drafts may add to the step; infinite for no TTFT SLO.
        first_token_weight: a setting.
        constants: of the policy.
    """
    requests, facts, constants = Requests(*requests), StepFacts(*facts), Constants(*constants)
    models = Models(Terms(*terms), Terms(*lookup_terms))
    cost, server = cost_state[0], server_state[0]
    weights, lag = cost.weights, requests.lag_tokens
    forget(models.drafter, new_rows)
    forget(models.lookup, new_rows)
    appended = Terms(*appended_terms)
    forget(appended, new_rows)
    for row in new_rows:
        tokens_per_step[row] = 0.0
    shape = sum_up(
        requests.phase,
        requests.context_tokens,
        lag,
        requests.limits,
        facts.prefill_tokens,
        facts.parallel_drafter,
        facts.batch_drafter,
        facts.first_pass_every_step,
        graph_lengths,
    )
    n, base = shape.requests, float(shape.decoding)
    costs = step_costs(weights, shape, float(facts.prefill_tokens))
    if server.unforeseen_share > 0.0:
        unforeseen = server.unforeseen_tokens / server.unforeseen_share
        joined = step_costs(weights, shape, facts.prefill_tokens + unforeseen)
        costs = expected_costs(costs, joined, server.unforeseen_share)
    costs = with_start(costs, weights[CATCH_UP] * facts.drafter_prefill_tokens)
    plain_seconds = no_draft_seconds(costs)
    waiting = shape.prefilling + facts.admitted_requests + (shape.first_decode if facts.draft_before_emit else 0)
    offers = list_offers(requests.limits, requests.lookup_lengths, requests.lookup_buckets)
    size, depth = len(offers.limits), offers.limits.max()
    if depth == 0:
        # A request that waits for its first token may draft once that is emitted.
        lengths = np.zeros(n, np.int64)
        nothing = (0, 0.0, 0.0, math.inf)
        return Decision(lengths, lengths, 0, False, base, plain_seconds, 0.0, shape.decoding, *nothing, lengths)

    survival, first, charged = work[0, :size, :depth], work[0, :size, -1], work[0, :size, -2]
    lag_seconds, offered = work[0, :size, -3], survival if size == n else work[3, :size, :depth]
    token_weight = token_weights(requests.rows, requests.phase, tokens_per_step)
    estimate(models, requests, offers, 0.0, first, survival)
    weigh(survival, offers, token_weight)
    charged[n:], lag_seconds[n:], lag_seconds[:n] = 0.0, 0.0, lag * weights[CATCH_UP]
    charge_catch_up(lag, requests.tokens_left, first, weights[CATCH_UP], constants.catch_up_tokens, charged)
    gains = empty_gains(offers, survival, offered, work[1, :size, :depth], counts, sums, graph_lengths)
    rate = best_rate(gains, step_costs(weights, shape, 0.0), base, charged)
    price = rate * waiting_factor(shape, first_token_weight, plain_seconds, waiting, facts.waiting_seconds)

    lengths = np.zeros(size, np.int64)
    longest = max_seconds(slack, plain_seconds, added_seconds)
    padded = best_lengths(gains, costs, price, charged, longest, lengths)
    if not math.isinf(longest):
        padded = shorten(lengths, n, padded, costs, lag_seconds, longest)
    step_seconds = plan_seconds(costs, lengths, n, padded)
    value = expected_gain(survival, lengths) - price * (step_seconds + catch_up_seconds(charged, lengths))
    if value <= -price * plain_seconds:
        lengths[:] = 0
        padded, step_seconds, value = 0, plain_seconds, -price * plain_seconds
    seconds = step_seconds + catch_up_seconds(lag_seconds, lengths)
    number = int(np.count_nonzero(lengths))
    each, sources = by_request(offers, lengths)
    accepted = accepted_tokens(survival, offers, token_weight, lengths)
    update_tokens_per_step(tokens_per_step, requests.rows, requests.phase, accepted, constants.pace_weight)
    gain = accepted.sum()
    added = np.zeros(n, np.int64)
    if facts.longest_appended > 0 and not len(graph_lengths) and math.isinf(longest):
        share, most = server.found_share, facts.longest_appended
        added = append_limits(appended, requests, each, sources, token_weight, costs, price, share, most)
    decoding, no_experiment = shape.decoding, (0.0, 0.0, longest)
    best = Decision(each, sources, padded, False, base + gain, seconds, price, decoding, number, *no_experiment, added)
    refused = facts.step < server.considered_at + constants.pause_steps
    if waiting or server.budget <= 0.0 or refused:
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
    if more.worth > tried.worth:
        tried = more
    if not tried.worth > 0.0:
        server.considered_at = facts.step
        settled = number == 0 and more.worth < 0.0
        if not settled:
            return best
        return Decision(each, sources, padded, True, base + gain, seconds, price, decoding, 0, *no_experiment, added)
    chosen, padded = tried.draft_lengths, tried.padded_length
    tokens = base + accepted_tokens(survival, offers, token_weight, chosen).sum()
    tried_seconds = plan_seconds(costs, chosen, n, padded) + catch_up_seconds(lag_seconds, chosen)
    number, extra = int(np.count_nonzero(chosen)), tried_seconds - seconds
    each, sources = by_request(offers, chosen)
    none, tried_with = np.zeros(n, np.int64), (number, extra, gain, longest)
    return Decision(each, sources, padded, False, tokens, tried_seconds, price, decoding, *tried_with, none)
