"""How many tokens the look-up may append to each draft of the drafter, compiled.

What it will find is known only after drafting. A token that it appends is accepted if the whole draft is and all
appended tokens before it are, which has the probability A[i,j]. What the token gains and what its row costs both count
only where something is found. A token is therefore allowed where

    w_i · A[i,j]  >  λ · (seconds of one more token in the target's pass)

The model of A has the positions of a look-up's model: the whole draft is the first, appended tokens follow. Its buckets
are those of the score before drafting.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import VerifiedDrafts, fill_survival
from turbospec.models.logistic import Terms
from turbospec.planning.gain_histogram import LinearCosts, verify_seconds
from turbospec.policy.adaptive.experiments import Requests
from turbospec.runtime.kernels import compiled

ROUNDS = 3
"""In which the price of a token is corrected to the tokens that are appended at that price."""


@compiled
def append_limits(
    terms: Terms,
    requests: Requests,
    lengths: IntArray,
    sources: IntArray,
    token_weight: FloatArray,
    costs: LinearCosts,
    price: float,
    found_share: float,
    max_draft: int,
) -> IntArray:
    """(n,) most tokens to append.

    Args:
        terms: of the model of appended tokens.
        requests: of the view.
        lengths: (n,) planned draft lengths.
        sources: (n,) their sources.
        token_weight: (n,) w_i.
        costs: of the step.
        price: λ, tokens/s.
        found_share: tokens appended, as a share of those that were allowed.
        max_draft: longest draft, appended tokens included.
    """
    n, most = len(lengths), 0
    limits = np.zeros(n, np.int64)
    for i in range(n):
        if lengths[i] and not sources[i]:
            room = min(max_draft, requests.tokens_left[i] - 1) - lengths[i]
            if room > 0:
                limits[i] = room + 1  # of the model's positions; the draft is one
                most = max(most, limits[i])
    if not most:
        return limits
    survival = np.zeros((n, most))
    buckets = requests.lookup_buckets
    fill_survival(terms, requests.rows, requests.class_ids, buckets, limits, 0.0, np.zeros(n), survival)
    planned = int(costs.base_tokens + lengths.sum())
    before = verify_seconds(costs, planned)
    added = 1
    for _ in range(ROUNDS):
        token_price = price * (verify_seconds(costs, planned + added) - before) / added
        for i in range(n):
            limits[i] = 0
            for j in range(1, most):
                gain = token_weight[i] * survival[i, j]
                if gain == 0.0 or gain <= token_price:
                    break
                limits[i] = j
        added = max(round(found_share * limits.sum()), 1)
    return limits


@compiled
def verified_appended(drafts: VerifiedDrafts, of_drafter: IntArray, appended: IntArray) -> VerifiedDrafts:
    """What a step shows of the model: drafts that were appended to, as one position, and the appended tokens.

    Args:
        drafts: of both sources.
        of_drafter: (n,) tokens of the drafter.
        appended: (n,) tokens appended; empty for none.
    """
    judged, accepted = np.zeros_like(of_drafter), np.zeros_like(of_drafter)
    for i in range(len(appended)):
        if appended[i]:
            judged[i] = appended[i] + 1
            accepted[i] = max(drafts.accepted[i] - of_drafter[i] + 1, 0)
    none = np.zeros((0, 0))
    return VerifiedDrafts(drafts.rows, drafts.class_ids, drafts.buckets, judged, accepted, drafts.truncated, none)
