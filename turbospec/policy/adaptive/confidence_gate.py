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
from collections.abc import Sequence

import numpy as np

from turbospec.interface import BoolArray, FloatArray, IntArray, StepView
from turbospec.models.acceptance import confidence_covariate, request_terms
from turbospec.models.logistic import between_request_variance, covariate_variance, mackay, usual_covariate
from turbospec.models.step_cost import DRAFT_CONTEXT, PASSES, PREFILL, ROWS, TOKENS
from turbospec.planning.gain_histogram import segment_of
from turbospec.planning.token_weights import token_weights
from turbospec.policy.adaptive.experiments import Requests
from turbospec.policy.adaptive.state import TOKENS_PER_STEP, AdaptiveState, Shared, drafter_terms
from turbospec.runtime.kernels import compiled


class PricedGate:
    """The gate of one step.

    Args:
        state: whose acceptance and costs it decides by.
        rows: (n,) rows of the requests' state.
        view: of the step.
        limits: (n,) longest drafts.
        tokens: of the target's pass without drafts of the drafter.
        price: λ, tokens/s.
    """

    def __init__(
        self, state: AdaptiveState, rows: IntArray, view: StepView, limits: IntArray, tokens: int, price: float
    ) -> None:
        # The table of the requests as it is now: a later plan may replace it.
        self._shared, self._requests = state.shared, state.requests
        self._rows, self._view, self._limits, self._price = rows, view, limits, price
        self._gains = np.empty(len(rows))
        """(n,) w_i · S_i."""
        self._passes = 0
        self.tokens = tokens
        """Tokens of the target's pass, with those drafted so far."""

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        view = self._view
        more = _advance(
            self._shared,
            self._requests,
            self._rows,
            view.phase,
            view.context_tokens,
            view.class_ids,
            self._limits,
            self._gains,
            self._passes,
            self.tokens,
            self._price,
            rows,
            confidence,
        )
        self._passes += 1
        self.tokens += len(rows)
        return np.ones(len(rows), np.bool_), more


@compiled
def lengthen(
    weights: FloatArray, requests: Requests, sources: IntArray, spare_seconds: float, limits: IntArray
) -> None:
    """Raise the lengths of the drafter's drafts as far as its limits and an objective allow.

    Args:
        weights: of the step's cost.
        requests: of the view.
        sources: (n,) of the plan.
        spare_seconds: by which the step may become longer than planned; infinite without an objective.
        limits: (n,) draft lengths of the plan; raised.
    """
    n, depth, context = len(limits), 0, 0
    for i in range(n):
        context += requests.context_tokens[i]
        if not sources[i]:
            depth = max(depth, limits[i])
    lengths = limits.copy()
    token_seconds = weights[ROWS] + weights[DRAFT_CONTEXT] * context / n + weights[TOKENS:PREFILL].max()
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
        limits[:] = longer


@compiled
def _advance(
    state: Sequence[Shared],
    request_state: FloatArray,
    request_rows: IntArray,
    phase: IntArray,
    context_tokens: IntArray,
    class_ids: IntArray,
    limits: IntArray,
    gains: FloatArray,
    position: int,
    tokens: int,
    price: float,
    rows: IntArray,
    confidence: FloatArray,
) -> BoolArray:
    """(r,) whether each draft goes on after draft position `position`; the other arguments are `PricedGate`'s."""
    shared = state[0]
    terms, weights = drafter_terms(shared, request_state), shared.cost.weights
    if position == 0:
        gains[:] = token_weights(request_rows, phase, request_state[:, TOKENS_PER_STEP])
    more = np.zeros(len(rows), np.bool_)
    between_variance, of_covariate = between_request_variance(terms), covariate_variance(terms)
    last, slopes = len(terms.prior) - 1, weights[TOKENS:PREFILL]
    token_seconds = slopes[segment_of(tokens + len(rows), len(slopes))] + weights[ROWS]
    token_seconds += weights[DRAFT_CONTEXT] * context_tokens.sum() / len(context_tokens)
    token_price = price * token_seconds
    surplus = 0.0
    for r in range(len(rows)):
        i = int(rows[r])
        row = int(request_rows[i])
        shared_terms, variance = request_terms(terms, int(class_ids[i]), row, between_variance)
        feature = min(position, last)
        deviation = confidence_covariate(confidence[r]) - usual_covariate(terms, row, feature)
        x = terms.prior[feature] + terms.offsets[0, feature] + shared_terms + terms.slope[0] * deviation
        gains[i] *= mackay(x, variance + deviation * deviation * terms.slope[1])
        if position + 1 < limits[i]:
            feature = min(position + 1, last)
            x = terms.prior[feature] + terms.offsets[0, feature] + shared_terms
            next_gain = gains[i] * mackay(x, variance + of_covariate)
            if next_gain > token_price:
                more[r] = True
                surplus += next_gain - token_price
    if surplus <= price * weights[PASSES]:
        more[:] = False
    return more
