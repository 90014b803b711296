"""How much a token of each request is worth: w_i, by the time that it saves the request.

A request that emits u tokens per step at present ends 1/u of a step sooner for each further token. With n requests in
flight, the throughput is highest where requests leave soonest. Tokens are therefore weighted by

    w_i = (1 / u_i) / mean(1 / u)

The mean weight is 1, so that gains stay in tokens. Where all requests emit alike, all weights are 1. u_i is the running
mean of what the plans expected: the acceptance model has less noise than the outcomes.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import PREFILL, FloatArray, IntArray
from turbospec.planning.offers import Offers
from turbospec.runtime.kernels import inlined


@inlined
def token_weights(rows: IntArray, phase: IntArray, tokens_per_step: FloatArray) -> FloatArray:
    """(n,) w_i; 1 for requests in prefill, and those that have not emitted yet.

    Args:
        rows: (n,) rows of the per-request state.
        phase: (n,) of a view.
        tokens_per_step: (rows,) u_i; 0 where unknown.
    """
    weights = np.ones(len(rows))
    total, known = 0.0, 0
    for i in range(len(rows)):
        if phase[i] != PREFILL and tokens_per_step[rows[i]] > 0.0:
            weights[i] = 1.0 / tokens_per_step[rows[i]]
            total += weights[i]
            known += 1
    for i in range(len(rows)):
        if phase[i] != PREFILL and tokens_per_step[rows[i]] > 0.0:
            weights[i] *= known / total
    return weights


@inlined
def weigh(survival: FloatArray, offers: Offers, weights: FloatArray) -> None:
    """Multiply the (offers, K) survival of each request's draft tokens by the request's weight."""
    for offer in range(len(survival)):
        weight = weights[offers.request[offer]]
        for j in range(survival.shape[1]):
            survival[offer, j] *= weight


@inlined
def accepted_tokens(survival: FloatArray, offers: Offers, weights: FloatArray, lengths: IntArray) -> FloatArray:
    """(n,) expected accepted tokens of each request, from (offers, K) weighted survival and (offers,) draft lengths."""
    accepted = np.zeros(offers.requests)
    for offer in range(len(lengths)):
        request = offers.request[offer]
        for j in range(min(lengths[offer], survival.shape[1])):
            accepted[request] += survival[offer, j] / weights[request]
    return accepted


@inlined
def update_tokens_per_step(
    tokens_per_step: FloatArray, rows: IntArray, phase: IntArray, accepted: FloatArray, newest_weight: float
) -> None:
    """Take a plan's (n,) expected accepted tokens into the running means; the other arguments as for `token_weights`.

    `newest_weight` is that of the newest step; with 0 no mean becomes known, and all weights stay 1.
    """
    for i in range(len(rows)):
        if phase[i] != PREFILL and newest_weight > 0.0:
            emitted, row = 1.0 + accepted[i], rows[i]
            if tokens_per_step[row] == 0.0:
                tokens_per_step[row] = emitted
            tokens_per_step[row] += newest_weight * (emitted - tokens_per_step[row])
