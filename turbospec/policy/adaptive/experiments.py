"""The experiments of `adaptive`: a step without drafts, and drafts for more requests or one token longer."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.exploration.knowledge_gradient import improvement, learnt_seconds
from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import fill_survival
from turbospec.models.logistic import CLASS_PRIOR_VARIANCE, MAX_CLASSES, Terms, between_request_variance, posterior
from turbospec.models.step_cost import CATCH_UP, DRAFT, SIZE
from turbospec.planning.best_lengths import Gains, best_lengths, counted
from turbospec.planning.gain_histogram import LinearCosts, plan_seconds
from turbospec.planning.objective import StepShape, catch_up_seconds, expected_gain, plan_features, step_costs
from turbospec.policy.adaptive.constants import Constants
from turbospec.runtime.kernels import compiled


class Requests(NamedTuple):
    """Columns of a view, (n,) each."""

    rows: IntArray
    phase: IntArray
    context_tokens: IntArray
    tokens_left: IntArray
    lag_tokens: IntArray
    class_ids: IntArray
    limits: IntArray


class PlannedStep(NamedTuple):
    """A step with its best plan, which an experiment may replace."""

    shape: StepShape
    costs: LinearCosts
    gains: Gains
    price: float
    """λ, tokens/s."""
    charged: FloatArray
    """(n,) c_i, seconds."""
    lag_seconds: FloatArray
    """(n,) seconds to catch up each request."""
    max_seconds: float
    """Longest step allowed."""
    no_draft_seconds: float
    best: IntArray
    """(n,) draft lengths of the best plan."""
    padded_length: int
    value: float
    """Of the best plan, tokens."""
    seconds: float
    """Of the best plan, with all catching up."""


class Experiment(NamedTuple):
    """A plan that is tried."""

    draft_lengths: IntArray
    padded_length: int
    worth: float
    """In tokens; 0 where it costs more than it shows, -1 where better estimates would add no draft."""


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
    plain = np.zeros(len(lag), np.int64)
    difference = -step.price * step.no_draft_seconds - step.value
    if not step.best.any() or -difference / step.price > budget:
        return Experiment(plain, 0, 0.0)
    best, x = np.empty(SIZE), np.empty(SIZE)
    plan_features(best, step.shape, lag, step.best, step.padded_length)
    plan_features(x, step.shape, lag, plain, 0)
    learnt = step.price * learnt_seconds(covariance, noise * step.no_draft_seconds, x, x, best)
    return Experiment(plain, 0, constants.horizon * improvement(difference, learnt) + difference)


@compiled
def _cheaper_drafting(
    weights: FloatArray, covariance: FloatArray, step: PlannedStep, deviations: float
) -> tuple[LinearCosts, FloatArray]:
    """The step's costs, and the (n,) charges of catching up, if drafting is so many standard deviations cheaper."""
    low, base = weights.copy(), step.costs
    for i in range(DRAFT, SIZE):
        low[i] = max(weights[i] - deviations * math.sqrt(max(covariance[i, i], 0.0)), 0.0)
    now, then = step_costs(weights, step.shape, 0.0), step_costs(low, step.shape, 0.0)
    costs = LinearCosts(
        base.slopes,
        base.floor,
        base.base_tokens,
        base.no_draft,
        base.piecewise,
        base.draft_start + then.draft_start - now.draft_start,
        base.draft_pass + then.draft_pass - now.draft_pass,
        base.draft_token + then.draft_token - now.draft_token,
    )
    return costs, step.charged * (low[CATCH_UP] / max(weights[CATCH_UP], 1e-12))


@compiled
def _hidden_gain(
    terms: Terms, requests: Requests, survival: FloatArray, better: FloatArray, target: IntArray, deviations: float
) -> tuple[float, float]:
    """Tokens by which the target's gain rises per standard deviation of acceptance, and the mean variance of that."""
    n, depth = survival.shape
    hidden, variance, between_variance = expected_gain(better, target), 0.0, between_request_variance(terms)
    for i in range(n):
        for j in range(min(target[i], depth)):
            hidden -= min(survival[i, j], better[i, j])
        own = posterior(terms.requests, requests.rows[i], between_variance)[1]
        own += posterior(terms.classes, requests.class_ids[i] % MAX_CLASSES, CLASS_PRIOR_VARIANCE)[1]
        variance += (terms.level[1] + own / n) / n
    return hidden / deviations, variance


@compiled
def more_drafts(
    weights: FloatArray,
    covariance: FloatArray,
    noise: float,
    terms: Terms,
    requests: Requests,
    step: PlannedStep,
    better: FloatArray,
    budget: float,
    constants: Constants,
) -> Experiment:
    """Drafts for more requests, or one token longer.

    The target is the plan that would be best if acceptance were higher and drafting cheaper by `Constants.deviations`.
    The experiment is that plan, or a part of it: for the 1, 4, 16 … further requests with the least KV lag.

    Args:
        weights, covariance: of the step's cost.
        noise: standard deviation of the relative error of step times.
        terms: of the acceptance model.
        requests: of the step.
        step: with its best plan; its histogram is overwritten.
        better: (n, depth + 1) scratch space.
        budget: seconds that may be lost.
        constants: of the policy.
    """
    shape, best, lag, gains = step.shape, step.best, requests.lag_tokens, step.gains
    survival, (n, depth) = gains.survival, gains.survival.shape
    hoped, first = better[:, :depth], better[:, depth]
    fill_survival(terms, requests.rows, requests.class_ids, requests.limits, constants.deviations, first, hoped)
    hoped[:, min(best.max() + 1, depth) :] = 0.0
    counted_gains = counted(hoped, gains.net, gains.counts, gains.sums, requests.limits, gains.graph_lengths)
    costs, charged = _cheaper_drafting(weights, covariance, step, constants.deviations)
    target = np.zeros(n, np.int64)
    padded = best_lengths(counted_gains, costs, step.price, charged, step.max_seconds, target)
    more = np.flatnonzero(target > best)
    if len(more) == 0:
        return Experiment(best, 0, -1.0)
    more = more[np.argsort(step.lag_seconds[more], kind="mergesort")]
    value = expected_gain(survival, target)
    value -= step.price * (plan_seconds(step.costs, target, padded) + catch_up_seconds(step.charged, target))
    difference = value - step.value
    hidden, variance = _hidden_gain(terms, requests, survival, hoped, target, constants.deviations)
    best_gain = expected_gain(survival, best)
    x, target_x, best_x = np.empty(SIZE), np.empty(SIZE), np.empty(SIZE)
    plan_features(target_x, shape, lag, target, padded)
    plan_features(best_x, shape, lag, best, step.padded_length)
    chosen, size = Experiment(best, 0, 0.0), 1
    while True:
        size = min(size, len(more))
        lengths = best.copy()
        lengths[more[:size]] = target[more[:size]]
        with_padding = padded if size == len(more) and lengths.max() <= padded else 0
        seconds = plan_seconds(step.costs, lengths, with_padding) + catch_up_seconds(step.lag_seconds, lengths)
        lost = seconds - step.seconds - (expected_gain(survival, lengths) - best_gain) / step.price
        if lost > budget or seconds > step.max_seconds:
            break
        outcomes = size if best.any() else lengths.sum()
        seen = constants.outcome_variance * variance * outcomes
        learnt = hidden * math.sqrt(seen / (1.0 + seen))
        plan_features(x, shape, lag, lengths, with_padding)
        shown = step.price * learnt_seconds(covariance, noise * seconds, x, target_x, best_x)
        worth = constants.horizon * improvement(difference, math.hypot(shown, learnt)) - lost * step.price
        if worth > chosen.worth:
            chosen = Experiment(lengths, with_padding, worth)
        if size == len(more):
            break
        size *= 4
    return chosen
