"""Drafter KV lag that is never caught up, and what it costs in acceptance.

A server that skips the drafter keeps the inputs of the tokens that the drafter has not computed: for an EAGLE head the
target's hidden states, of which memory holds only so many. The tokens are kept over all requests, the latest ones. A
request whose lag reaches further back cannot catch up. It then drafts no more (TurboSpec's scheduler in vLLM), or its
drafter goes on with a gap in its KV cache (vLLM after an error, hosts without such orders, the next turn of a
conversation whose last one was not caught up), and fewer of its drafts are accepted.
"""

from __future__ import annotations

from turbospec.runtime.kernels import compiled
from turbospec_sim.records import Record, Records

NO_LAG = -1
NEVER_DRAFTS = -1.0
"""`gap_acceptance` of an engine in which a request that cannot catch up drafts no more."""


@compiled
def lag_is_lost(engine: Records, request: Record) -> bool:
    """Whether the server no longer keeps all tokens that a request's drafter lacks."""
    state = engine[0]
    if state.kept_limit == 0 or request.kept_since == NO_LAG:
        return False
    return state.kept - request.kept_since > state.kept_limit


@compiled
def goes_on_with_gap(engine: Records, request: Record) -> bool:
    """Whether the drafter's next pass leaves out what the request lags by."""
    return engine[0].gap_acceptance != NEVER_DRAFTS and lag_is_lost(engine, request)


@compiled
def keep(engine: Records, request: Record, tokens: int) -> None:
    """Keep the tokens that a step computed for a request while its drafter did not."""
    state = engine[0]
    if request.kept_since == NO_LAG:
        request.kept_since = state.kept
    state.kept += tokens


@compiled
def acceptance_share(engine: Records, request: Record) -> float:
    """Share of the usual acceptance that a decoding request's next draft has; below 1 after a gap."""
    state = engine[0]
    if state.kept_limit == 0:
        return 1.0
    lost = 1.0 - state.gap_acceptance
    if goes_on_with_gap(engine, request):
        return 1.0 - lost
    if request.gap_end == 0:
        return 1.0
    since = request.prompt_tokens + request.emitted - request.gap_end
    return 1.0 - lost * max(1.0 - since / state.gap_tokens, 0.0)
