"""Shortens drafts of `adaptive` when prompts join the step that verifies them, compiled.

The drafts are made by then. The objective stays the same, but drafting costs nothing more, and the number of tokens in
the target's pass is known:

    max over 0 ≤ v ≤ k   Σ_i w_i Σ_{j≤v_i} S[i,j]  −  λ · V(base + Σ_i v_i)

k_i is the length of the draft made for request i, V the duration of the target's pass, λ the plan's price of time, and
base the number of the step's tokens without drafts, prompts included. A plan expects prompts by their mean
(`turbospec.planning.objective.expected_costs`). What they cost depends on their number, above all where a pass becomes
too large for CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray, Source
from turbospec.models.acceptance import score_buckets
from turbospec.models.step_cost import PREFILL, TOKENS, UNGRAPHED
from turbospec.planning.best_lengths import best_lengths, consider, uncounted_gains
from turbospec.planning.gain_histogram import NO_LIMIT, LinearCosts
from turbospec.planning.offers import by_request, list_offers
from turbospec.planning.token_weights import token_weights, weigh
from turbospec.policy.adaptive.experiments import Models, Requests, estimate
from turbospec.policy.adaptive.state import TOKENS_PER_STEP, AdaptiveState, Shared, drafter_terms, lookup_terms
from turbospec.runtime.kernels import compiled

DRAFTER = Source.DRAFTER.value
NO_GRAPHS = np.zeros(0, np.int64)


class Scratch(NamedTuple):
    """Scratch space of a decision, as for `turbospec.policy.adaptive.decision.decide`."""

    work: FloatArray
    counts: IntArray
    sums: FloatArray


class PricedTrim:
    """The trim of one step.

    Args:
        state: whose acceptance and costs it decides by.
        scratch: of the policy.
        columns: of the view, as for `decide`; its limits and the tokens found by a look-up are not used.
        scores: (n,) of a look-up; empty without one.
        lengths: (n,) of the plan.
        sources: (n,) of the drafts.
        largest_graph: of the view.
        price: λ, tokens/s.
    """

    def __init__(
        self,
        state: AdaptiveState,
        scratch: Scratch,
        columns: Any,
        scores: FloatArray,
        lengths: IntArray,
        sources: IntArray,
        largest_graph: int,
        price: float,
    ) -> None:
        # The table of the requests as it is now: a later plan may replace it.
        self._shared, self._requests = state.shared, state.requests
        self._scratch, self._columns, self._scores = scratch, columns, scores
        self._lengths, self._sources = lengths, sources
        self._largest_graph, self._price = largest_graph, price

    def trim(self, drafts: IntArray, tokens_batched: int) -> IntArray:
        return _trim(
            self._shared,
            self._requests,
            self._scratch,
            self._columns,
            self._scores,
            self._lengths,
            self._sources,
            self._largest_graph,
            self._price,
            drafts,
            tokens_batched,
        )


@compiled
def _trim(
    state: Sequence[Shared],
    request_state: FloatArray,
    scratch: Scratch,
    columns: tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray],
    lookup_scores: FloatArray,
    lengths: IntArray,
    sources: IntArray,
    largest_graph: int,
    price: float,
    drafts: IntArray,
    tokens_batched: int,
) -> IntArray:
    """(n,) tokens to verify of each draft; the arguments are those of `PricedTrim` and of its method."""
    shared, n = state[0], len(drafts)
    weights = shared.cost.weights
    # A step with prompts replays no full graph, for which drafts are padded.
    made = np.minimum(drafts, lengths)
    of_drafter = np.where(sources == DRAFTER, made, 0)
    copied = made - of_drafter if len(lookup_scores) else np.zeros(0, np.int64)
    requests = Requests(*columns[:7], of_drafter, copied, score_buckets(lookup_scores))
    offers = list_offers(of_drafter, copied, requests.lookup_buckets)
    size, depth = len(offers.limits), offers.limits.max()
    if depth == 0:
        return made
    work = scratch.work
    survival, first, offered = work[0, :size, :depth], work[0, :size, -1], work[3, :size, :depth]
    models = Models(drafter_terms(shared, request_state), lookup_terms(shared, request_state))
    estimate(models, requests, offers, 0.0, first, survival)
    weigh(survival, offers, token_weights(requests.rows, requests.phase, request_state[:, TOKENS_PER_STEP]))
    if size == n:
        offered = survival
    gains = uncounted_gains(offers, survival, offered, work[1, :size, :depth], scratch.counts, scratch.sums, NO_GRAPHS)
    costs = LinearCosts(
        slopes=weights[TOKENS:PREFILL],
        floor=0.0,
        base_tokens=max(tokens_batched - drafts.sum(), 1),
        no_draft_piecewise=0.0,
        piecewise=0.0,
        draft_start=0.0,
        draft_pass=0.0,
        draft_token=0.0,
        graph_tokens=largest_graph if largest_graph else NO_LIMIT,
        ungraphed=weights[UNGRAPHED],
        pass_graphs=0,
    )
    fixed, kept = np.zeros(size), np.zeros(size, np.int64)
    consider(gains, costs, price, 0.0, fixed)
    best_lengths(gains, costs, price, fixed, math.inf, kept)
    each, _ = by_request(offers, kept)
    return each
