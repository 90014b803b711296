"""The experiments of `adaptive`: a step without drafts, and drafts for more requests, of the other source or longer."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.exploration.knowledge_gradient import improvement, learnt_seconds
from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import ONE_BUCKET, fill_survival, request_terms
from turbospec.models.logistic import Terms, between_request_variance
from turbospec.models.step_cost import CATCH_UP, DRAFT, SIZE
from turbospec.planning.best_lengths import Gains, best_lengths, consider, uncounted_gains
from turbospec.planning.gain_histogram import LinearCosts, drafter_work, passes_run, plan_seconds
from turbospec.planning.objective import StepShape, drafting_costs, expected_gain, plan_features, sum_of_drafts
from turbospec.planning.offers import Offers
from turbospec.planning.token_weights import accepted_tokens, weigh
from turbospec.policy.adaptive.constants import Constants
from turbospec.runtime.kernels import compiled, inlined


class Requests(NamedTuple):
    """Columns of a view, (n,) each."""

    rows: IntArray
    phase: IntArray
    emitted_tokens: IntArray
    context_tokens: IntArray
    tokens_left: IntArray
    lag_tokens: IntArray
    class_ids: IntArray
    limits: IntArray
    lookup_lengths: IntArray
    """Empty without a look-up, as the next."""
    lookup_buckets: IntArray
    """Of the look-up's scores."""


class Models(NamedTuple):
    """Of acceptance."""

    drafter: Terms
    lookup: Terms


class PlannedStep(NamedTuple):
    """A step with its best plan, which an experiment may replace."""

    shape: StepShape
    costs: LinearCosts
    gains: Gains
    token_weights: FloatArray
    """(n,) w_i."""
    price: float
    """λ, tokens/s."""
    charged: FloatArray
    """(offers,) c_i, seconds."""
    lag_seconds: FloatArray
    """(offers,) what catching up adds to the step."""
    no_draft_seconds: float
    best: IntArray
    """(offers,) draft lengths of the best plan."""
    padded_length: int
    value: float
    """Of the best plan, tokens."""
    accepted: FloatArray
    """(n,) draft tokens that the best plan is expected to have accepted."""
    seconds: float
    """Of the best plan, with all catching up and the prices in `costs`."""


class Experiment(NamedTuple):
    """A plan that is tried in place of the best one."""

    draft_lengths: IntArray
    """(offers,)"""
    padded_length: int
    accepted: float
    """Draft tokens that it is expected to have accepted."""
    seconds: float
    """As in `PlannedStep`."""
    loss: float
    """What it is expected to take out of the budget, seconds."""
    worth: float
    """In tokens. 0 or less: it is not to run, because it costs more than it shows or the budget does not cover its
    loss."""


class Search(NamedTuple):
    """The search for an experiment with more drafts."""

    best: Experiment
    unaffordable_loss: float
    """Seconds that the least experiment would lose, if it is worth them and the budget does not cover them; otherwise
    0."""
    adds_drafts: bool
    """Whether better estimates would add any draft."""


@inlined
def no_experiment(step: PlannedStep) -> Experiment:
    """The best plan, in place of an experiment."""
    return Experiment(step.best, step.padded_length, step.accepted.sum(), step.seconds, 0.0, 0.0)


@inlined
def charged_loss(extra_seconds: float, extra_tokens: float, price: float) -> float:
    """Seconds that an experiment takes out of the budget: the time that it adds to the best plan, less the worth of its
    tokens; at least a tenth of that time."""
    return max(extra_seconds - extra_tokens / price, 0.1 * abs(extra_seconds))


@inlined
def estimate(
    models: Models, requests: Requests, offers: Offers, deviations: float, first: FloatArray, survival: FloatArray
) -> None:
    """Fill (offers, depth) `survival` and (offers,) `first`, as `fill_survival` does, for both sources."""
    n = offers.requests
    fill_survival(
        models.drafter,
        requests.rows,
        requests.class_ids,
        ONE_BUCKET,
        offers.limits[:n],
        deviations,
        first[:n],
        survival[:n],
    )
    if len(survival) == n:
        return
    at = offers.request[n:]
    fill_survival(
        models.lookup,
        requests.rows[at],
        requests.class_ids[at],
        offers.buckets,
        offers.limits[n:],
        deviations,
        first[n:],
        survival[n:],
    )


@compiled
def without_drafts(
    covariance: FloatArray, noise: float, step: PlannedStep, lag: IntArray, budget: float, constants: Constants
) -> Experiment:
    """A step without drafts in place of one with drafts.

    Args:
        covariance: of the cost weights.
        noise: standard deviation of the relative error of step times.
        step: with its best plan.
        lag: (n,) drafter KV lag, tokens.
        budget: seconds that may be lost.
        constants: of the policy.
    """
    difference = -step.price * step.no_draft_seconds - step.value
    if not step.best.any() or -difference / step.price > budget:
        return no_experiment(step)
    loss = charged_loss(step.no_draft_seconds - step.seconds, -step.accepted.sum(), step.price)
    plain, x, best_x = np.zeros(len(step.best), np.int64), np.empty(SIZE), np.empty(SIZE)
    plan_features(x, step.shape, lag, plain, 0)
    plan_features(best_x, step.shape, lag, step.best, step.padded_length)
    learnt = step.price * learnt_seconds(covariance, noise * step.no_draft_seconds, x, x, best_x)
    worth = constants.horizon * improvement(difference, learnt) + difference
    return Experiment(plain, 0, 0.0, step.no_draft_seconds, loss, worth)


@compiled
def _cheaper_drafting(weights: FloatArray, covariance: FloatArray, step: PlannedStep) -> tuple[LinearCosts, FloatArray]:
    """The step's costs and the (offers,) charges of drafts, if drafting is a standard deviation cheaper."""
    low, base = weights.copy(), step.costs
    for i in range(DRAFT, SIZE):
        low[i] = max(weights[i] - math.sqrt(max(covariance[i, i], 0.0)), 0.0)
    start, each, row = drafting_costs(weights, step.shape)
    low_start, low_each, low_row = drafting_costs(low, step.shape)
    costs = LinearCosts(
        base.slopes,
        base.floor,
        base.base_tokens,
        base.no_draft_piecewise,
        base.piecewise,
        base.draft_start + low_start - start,
        base.draft_pass + low_each - each,
        base.draft_token + low_row - row,
        base.graph_tokens,
        base.ungraphed,
        base.pass_graphs,
    )
    return costs, step.charged * (low[CATCH_UP] / max(weights[CATCH_UP], 1e-12))


@compiled
def _hidden_gain(
    terms: Terms,
    rows: IntArray,
    class_ids: IntArray,
    survival: FloatArray,
    better: FloatArray,
    target: IntArray,
) -> tuple[float, float]:
    """The tokens that the target would gain if one source's log-odds were a standard deviation higher, and the variance
    of the mean log-odds over its offers. All arrays have a row for each of these."""
    n, depth = survival.shape
    hidden, variance, between_variance = 0.0, 0.0, between_request_variance(terms)
    for i in range(n):
        for j in range(min(target[i], depth)):
            hidden += better[i, j] - survival[i, j]
        _, own = request_terms(terms, class_ids[i], rows[i], between_variance)
        variance += (terms.level[1] + (own - terms.level[1]) / n) / n
    return hidden, variance


@compiled
def _outcomes(tried: IntArray, best: IntArray) -> float:
    """Draft tokens whose outcome only the experiment shows: one for each longer draft if the best plan uses the source
    too, otherwise all."""
    number, drafts, used = 0, 0, False
    for i in range(len(tried)):
        if tried[i] > best[i]:
            drafts += 1
        number += tried[i]
        used |= best[i] > 0
    return float(drafts if used else number)


@compiled
def more_drafts(
    weights: FloatArray,
    covariance: FloatArray,
    noise: float,
    models: Models,
    requests: Requests,
    step: PlannedStep,
    better: FloatArray,
    budget: float,
    max_seconds: float,
    any_length: bool,
    constants: Constants,
) -> Search:
    """Drafts for more requests, of the other source, or longer ones.

    The target is the plan that would be best if acceptance were higher and drafting cheaper by a standard deviation.
    Unless `any_length`, a drafter that takes a pass for each token drafts one token longer than in the best plan at
    most, or to the end of its next graph. The experiment is the target, or a part of it: for the 1, 4, 16 … further
    requests with the least KV lag.

    Args:
        weights, covariance: of the step's cost.
        noise: standard deviation of the relative error of step times.
        models: of acceptance.
        requests: of the step.
        step: with its best plan; its histogram is overwritten.
        better: (offers, depth + 1) scratch space.
        budget: seconds that may be lost.
        max_seconds: longest step allowed.
        any_length: whether the target may be of any length.
        constants: of the policy.
    """
    shape, best, lag, gains = step.shape, step.best, requests.lag_tokens, step.gains
    offers, survival, (size, depth) = gains.offers, gains.survival, gains.survival.shape
    n = offers.requests
    hoped, first = better[:, :depth], better[:, depth]
    estimate(models, requests, offers, 1.0, first, hoped)
    weigh(hoped, offers, step.token_weights)
    if not (shape.parallel_drafter or any_length):
        hoped[:n, min(passes_run(drafter_work(best, n)[1] + 1, shape.pass_graphs), depth) :] = 0.0
    costs, charged = _cheaper_drafting(weights, covariance, step)
    offered = hoped if size == n else gains.offered
    hoped_gains = uncounted_gains(offers, hoped, offered, gains.net, gains.counts, gains.sums, gains.graph_lengths)
    consider(hoped_gains, costs, step.price, 0.0, charged)
    target = np.zeros(size, np.int64)
    padded = best_lengths(hoped_gains, costs, step.price, charged, max_seconds, target)
    more = np.flatnonzero(target > best)
    if len(more) == 0:
        return Search(no_experiment(step), 0.0, False)
    more = more[np.argsort(step.lag_seconds[more], kind="mergesort")]
    value = expected_gain(survival, target)
    value -= step.price * (plan_seconds(step.costs, target, n, padded) + sum_of_drafts(step.charged, target))
    difference = value - step.value
    rows, class_ids, at = requests.rows, requests.class_ids, offers.request[n:]
    drafter = _hidden_gain(models.drafter, rows, class_ids, survival[:n], hoped[:n], target[:n])
    lookup = (0.0, 0.0)
    if size > n:
        lookup = _hidden_gain(models.lookup, rows[at], class_ids[at], survival[n:], hoped[n:], target[n:])
    gained = expected_gain(survival, best)
    x, target_x, best_x = np.empty(SIZE), np.empty(SIZE), np.empty(SIZE)
    plan_features(target_x, shape, lag, target, padded)
    plan_features(best_x, shape, lag, best, step.padded_length)
    chosen, number = no_experiment(step), 1
    while True:
        number = min(number, len(more))
        lengths = best.copy()
        for offer in more[:number]:
            lengths[offer] = target[offer]
            if offers.other[offer] >= 0:
                lengths[offers.other[offer]] = 0
        with_padding = padded if number == len(more) and lengths.max() <= padded else 0
        seconds = plan_seconds(step.costs, lengths, n, with_padding) + sum_of_drafts(step.lag_seconds, lengths)
        extra = seconds - step.seconds
        lost = extra - (expected_gain(survival, lengths) - gained) / step.price
        if seconds > max_seconds or (lost > budget and number > 1):
            break
        seen = constants.outcome_variance * drafter[1] * _outcomes(lengths[:n], best[:n])
        learnt = drafter[0] * math.sqrt(seen / (1.0 + seen))
        if size > n:
            seen = constants.outcome_variance * lookup[1] * _outcomes(lengths[n:], best[n:])
            learnt = math.hypot(learnt, lookup[0] * math.sqrt(seen / (1.0 + seen)))
        plan_features(x, shape, lag, lengths, with_padding)
        shown = step.price * learnt_seconds(covariance, noise * seconds, x, target_x, best_x)
        worth = constants.horizon * improvement(difference, math.hypot(shown, learnt)) - lost * step.price
        if lost > budget:
            return Search(chosen, lost if worth > 0.0 else 0.0, True)
        if worth > chosen.worth:
            tokens = accepted_tokens(survival, offers, step.token_weights, lengths).sum()
            loss = charged_loss(extra, tokens - step.accepted.sum(), step.price)
            chosen = Experiment(lengths, with_padding, tokens, seconds, loss, worth)
        if number == len(more):
            break
        number *= 4
    return Search(chosen, 0.0, True)
