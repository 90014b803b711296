"""Which source drafts for each request, where the engine has two.

An offer is a draft that could be made. The first n offers are the drafter's, one for each request; those of a look-up
follow, one for each request for which it found something. Of a request's two offers one is used:

    the larger of   max_j Σ_{i≤j} (S[i] − θ)   of both sources,   less what the drafter costs beside its passes

θ is the price of a verify token, in accepted tokens. It is that of the plan with the best token rate: the smallest
gain in it, which is more than λ · slope where the plan ends at a knot of the verify curve. For the θ of the best plan
the choice is the best one. Passes of the drafter are shared between requests and are not in the comparison: the plan of
both sources is therefore compared with the best one of the look-up alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled, inlined


class Offers(NamedTuple):
    """The drafts that can be made in a step: n of the drafter, m of a look-up. m is 0 where there is none."""

    requests: int
    """n."""
    request: IntArray
    """(n + m,) row of the view."""
    other: IntArray
    """(n + m,) the request's other offer; -1 for none."""
    limits: IntArray
    """(n + m,) longest draft."""
    buckets: IntArray
    """(m,) of the scores of what the look-up found."""


@inlined
def list_offers(limits: IntArray, lookup_lengths: IntArray, lookup_buckets: IntArray) -> Offers:
    """The offers of a step.

    Args:
        limits: (n,) draft limits of the drafter.
        lookup_lengths: (n,) of a `LookupView`; empty without one, as the next.
        lookup_buckets: (n,) of its scores.
    """
    n, m = len(limits), 0
    for length in lookup_lengths:
        m += length > 0
    request, other, longest = np.arange(n + m), np.full(n + m, -1), np.empty(n + m, np.int64)
    longest[:n], buckets, offer = limits, np.empty(m, np.int64), n
    for i in range(len(lookup_lengths)):
        if lookup_lengths[i]:
            request[offer], longest[offer], buckets[offer - n] = i, lookup_lengths[i], lookup_buckets[i]
            other[offer], other[i] = i, offer
            offer += 1
    return Offers(n, request, other, longest, buckets)


@compiled
def _worth(survival: FloatArray, verify_token: float) -> float:
    """Largest Σ_{i≤j} (S[i] − θ) over j."""
    worth = 0.0
    for gain in survival:
        if gain <= verify_token:
            break
        worth += gain - verify_token
    return worth


@compiled
def choose_sources(
    offers: Offers,
    survival: FloatArray,
    verify_token: float,
    drafter_token: float,
    fixed_tokens: FloatArray,
    offered: FloatArray,
) -> None:
    """Fill (offers, K) `offered` with the survival of the better offer of each request, and 0 for the other.

    Args:
        offers: of the step.
        survival: (offers, K) w · S[o,j].
        verify_token: θ.
        drafter_token: what a row of a drafter pass costs, in tokens.
        fixed_tokens: (offers,) what a draft costs beside its tokens, in tokens.
        offered: to be filled.
    """
    offered[:] = survival
    for offer in range(offers.requests, len(survival)):
        other = offers.other[offer]
        drafter = _worth(survival[other], verify_token + drafter_token) - fixed_tokens[other]
        if drafter > _worth(survival[offer], verify_token):
            offered[offer] = 0.0
        else:
            offered[other] = 0.0


@compiled
def offer_lookups(offers: Offers, survival: FloatArray, offered: FloatArray) -> None:
    """Fill (offers, K) `offered` with the survival of the look-up's offers, and 0 for the drafter's."""
    offered[: offers.requests] = 0.0
    offered[offers.requests :] = survival[offers.requests :]


@inlined
def by_request(offers: Offers, lengths: IntArray) -> tuple[IntArray, IntArray]:
    """(n,) draft lengths and (n,) sources, from (offers,) draft lengths."""
    n = offers.requests
    each, sources = lengths[:n].copy(), np.zeros(n, np.int64)
    for offer in range(n, len(lengths)):
        if lengths[offer]:
            request = offers.request[offer]
            each[request], sources[request] = lengths[offer], 1
    return each, sources
