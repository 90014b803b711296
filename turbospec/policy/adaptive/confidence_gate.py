"""Ends drafts of `adaptive` early, on the drafter's confidence, compiled.

Before a draft is made, its length is chosen for the mean confidence of its tokens. While it is made, the confidence in
each token is seen. Let S be the probability that all tokens drafted so far are accepted, given the confidence in each,
and a the acceptance of the next token, whose confidence is not known yet. Each draft goes on as long as its next token
pays for its row and its verification, and the drafter's pass runs as long as these drafts together pay for it too:

    w_i · S_i · a_i  >  λ · (row + verify)          Σ over them of (w_i · S_i · a_i − λ · (row + verify))  >  λ · pass

Looking one pass ahead is the optimal stopping rule for one request if a does not rise from one position to the next and
the price of a token does not fall (the monotone case; Chow and Robbins, Annals of Mathematical Statistics 32, 1961).
Elsewhere it is a heuristic. Every token that was drafted is verified: dropping those that do not pay for their
verification gained nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.interface import PREFILL as PREFILL_PHASE
from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec.models.acceptance import confidence_covariate, request_terms
from turbospec.models.logistic import Terms, between_request_variance, covariate_variance, mackay, usual_covariate
from turbospec.models.step_cost import DRAFT_CONTEXT, PASSES, PREFILL, ROWS, TOKENS
from turbospec.planning.gain_histogram import segment_of
from turbospec.planning.token_weights import token_weights
from turbospec.policy.adaptive.experiments import Requests
from turbospec.runtime.kernels import compiled, unnamed


class GatedStep(NamedTuple):
    """A step whose drafts are being made. Arrays have a row for each request of the plan's view."""

    rows: IntArray
    """(n,) rows of the per-request state."""
    class_ids: IntArray
    """(n,) service classes."""
    limits: IntArray
    """(n,) longest drafts."""
    gains: FloatArray
    """(n,) w_i · S_i; updated."""
    made: IntArray
    """(2,) passes of the drafter, and tokens of the target's pass; updated."""
    row_context_tokens: float
    """KV tokens that the drafter reads for a row."""
    price: float
    """λ, tokens/s."""


class PricedGate:
    """The gate of one step.

    Args:
        terms: of the drafter's acceptance model.
        weights: of the step's cost.
        step: of the plan.
    """

    def __init__(self, terms: Terms, weights: FloatArray, step: GatedStep) -> None:
        self._terms, self._weights, self._step = unnamed(terms), weights, unnamed(step)

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        return _advance(self._terms, self._weights, self._step, rows, confidence)


@compiled
def gated_step(
    weights: FloatArray,
    requests: Requests,
    lengths: IntArray,
    sources: IntArray,
    tokens_per_step: FloatArray,
    prefill_tokens: int,
    price: float,
    spare_seconds: float,
) -> GatedStep:
    """The step of a plan before its drafts are made.

    Args:
        weights: of the step's cost.
        requests: of the view.
        lengths, sources: (n,) of the plan.
        tokens_per_step: (rows,) of each request's state; 0 where unknown.
        prefill_tokens: of the step.
        price: λ, tokens/s.
        spare_seconds: by which the step may become longer than planned; infinite without an objective.
    """
    requests = Requests(*requests)
    n, depth = len(lengths), 0
    tokens, context = prefill_tokens, 0
    for i in range(n):
        context += requests.context_tokens[i]
        tokens += requests.phase[i] != PREFILL_PHASE
        if sources[i]:
            tokens += lengths[i]
        else:
            depth = max(depth, lengths[i])
    row_context, limits = context / n, lengths.copy()
    token_seconds = weights[ROWS] + weights[DRAFT_CONTEXT] * row_context + weights[TOKENS:PREFILL].max()
    most = requests.limits.max()
    for longest in range(most if math.isinf(spare_seconds) else 1, most + 1):
        # All drafts, made as long as this where they are shorter.
        longer, added = lengths.copy(), 0
        for i in range(n):
            if lengths[i] and not sources[i]:
                longer[i] = max(lengths[i], min(requests.limits[i], longest))
                added += longer[i] - lengths[i]
        if added * token_seconds + max(longest - depth, 0) * weights[PASSES] > max(spare_seconds, 0.0):
            break
        limits = longer
    gains = token_weights(requests.rows, requests.phase, tokens_per_step)
    made = np.zeros(2, np.int64)
    made[1] = tokens
    return GatedStep(requests.rows, requests.class_ids, limits, gains, made, row_context, price)


@compiled
def _advance(
    terms: Terms, weights: FloatArray, step: GatedStep, rows: IntArray, confidence: FloatArray
) -> tuple[BoolArray, BoolArray]:
    terms, step = Terms(*terms), GatedStep(*step)
    more = np.zeros(len(rows), np.bool_)
    between_variance, of_covariate = between_request_variance(terms), covariate_variance(terms)
    last, position, tokens = len(terms.prior) - 1, step.made[0], step.made[1]
    slopes = weights[TOKENS:PREFILL]
    token_seconds = slopes[segment_of(tokens + len(rows), len(slopes))]
    token_seconds += weights[ROWS] + weights[DRAFT_CONTEXT] * step.row_context_tokens
    token_price = step.price * token_seconds
    surplus = 0.0
    for r in range(len(rows)):
        i = int(rows[r])
        row = int(step.rows[i])
        shared, variance = request_terms(terms, int(step.class_ids[i]), row, between_variance)
        feature = min(position, last)
        deviation = confidence_covariate(confidence[r]) - usual_covariate(terms, row, feature)
        x = terms.prior[feature] + terms.offsets[0, feature] + shared + terms.slope[0] * deviation
        step.gains[i] *= mackay(x, variance + deviation * deviation * terms.slope[1])
        if position + 1 < step.limits[i]:
            feature = min(position + 1, last)
            x = terms.prior[feature] + terms.offsets[0, feature] + shared
            next_gain = step.gains[i] * mackay(x, variance + of_covariate)
            if next_gain > token_price:
                more[r] = True
                surplus += next_gain - token_price
    step.made[0], step.made[1] = position + 1, tokens + len(rows)
    if surplus <= step.price * weights[PASSES]:
        more[:] = False
    return np.ones(len(rows), np.bool_), more
