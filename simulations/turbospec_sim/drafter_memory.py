"""KV blocks of the drafter in the memory of the target: who holds them, and when they go back to the target.

The rule is that of the embedded engine, `turbospec_engine/request_blocks.py`. While the drafter is in use, a request is
admitted with KV blocks for both models, and grows in both. Otherwise it gets the target's alone, and the drafter's at
its first draft. A request that has not drafted for long gives the drafter's back where blocks are lacking; its drafter
KV lag is then its whole context. Blocks of the drafter are counted in fractions of the target's, over all requests.
"""

from __future__ import annotations

import math

from turbospec.interface import IntArray, Source
from turbospec.runtime.kernels import compiled
from turbospec_sim.records import RUNNING, Record, Records
from turbospec_sim.shared_prefix import hold_prefix, prefix_lacking

DRAFTER = Source.DRAFTER.value
IDLE_STEPS = 100
"""Decode steps of a request without a draft of the drafter, after which its drafter KV blocks may be given back."""
IN_USE = 1 / 8
"""Of the requests that could draft, the mean share that did in the last `IDLE_STEPS` steps. Above this share new
requests get drafter KV blocks."""


@compiled
def drafter_in_use(engine: Records) -> bool:
    """Whether new requests get drafter KV blocks."""
    state = engine[0]
    return state.gives_back == 0 or state.drafting_share > IN_USE


@compiled
def blocks_lacking(engine: Records, request: Record, tokens: int, drafting: bool) -> int:
    """Blocks that a request lacks for `tokens` tokens, in the drafter too where it is `drafting`."""
    state = engine[0]
    needed = -(-(tokens - request.shared_tokens) // state.block_size)
    lacking = max(needed - request.blocks, 0) + prefix_lacking(state, request)
    if drafting and state.draft_kv_share > 0:
        lacking += _whole(state, state.draft_blocks + max(needed - request.draft_blocks, 0))
        lacking -= _whole(state, state.draft_blocks)
    return lacking


@compiled
def allocate(engine: Records, request: Record, tokens: int, drafting: bool) -> bool:
    """Give a request the KV blocks for `tokens` tokens, in the drafter too where it is `drafting`.

    False, and no change, where too few blocks are free.
    """
    state = engine[0]
    lacking = blocks_lacking(engine, request, tokens, drafting)
    if lacking > state.free_blocks:
        return False
    state.free_blocks -= lacking
    needed = -(-(tokens - request.shared_tokens) // state.block_size)
    request.blocks = max(needed, request.blocks)
    hold_prefix(state, request)
    if drafting and state.draft_kv_share > 0:
        state.draft_blocks += max(needed - request.draft_blocks, 0)
        request.draft_blocks = max(needed, request.draft_blocks)
    return True


@compiled
def allocate_most(engine: Records, request: Record, known: int, drafts: int, drafting: bool) -> int:
    """Give a request the KV blocks for `known` tokens and as many of its `drafts` as fit; returns how many do."""
    while drafts > 0 and not allocate(engine, request, known + drafts, drafting):
        drafts -= 1
    return drafts


@compiled
def free_drafter(engine: Records, request: Record) -> None:
    """Free a request's KV blocks of the drafter."""
    state = engine[0]
    if request.draft_blocks > 0:
        held = _whole(state, state.draft_blocks)
        state.draft_blocks -= request.draft_blocks
        request.draft_blocks = 0
        state.free_blocks += held - _whole(state, state.draft_blocks)


@compiled
def free(engine: Records, request: Record) -> None:
    """Free all of a request's KV blocks."""
    free_drafter(engine, request)
    engine[0].free_blocks += request.blocks
    request.blocks = 0


@compiled
def give_back(engine: Records, request: Record) -> None:
    """Free the drafter KV blocks of a running request, which then lags by its whole context."""
    free_drafter(engine, request)
    request.draft_computed = 0
    engine[0].given_back += 1


@compiled
def give_back_idle(engine: Records, requests: Records, queues: IntArray) -> bool:
    """Free the drafter KV blocks of the request that has not drafted for longest; False where none is idle."""
    state = engine[0]
    if state.gives_back == 0 or state.draft_blocks == 0:
        return False
    longest, found = IDLE_STEPS - 1, -1
    for place in range(state.running):
        request = requests[queues[RUNNING, place]]
        if request.draft_blocks > 0 and request.decode_steps - request.drafted_at > longest:
            longest, found = request.decode_steps - request.drafted_at, queues[RUNNING, place]
    if found < 0:
        return False
    give_back(engine, requests[found])
    return True


@compiled
def reserve_drafts(
    engine: Records, requests: Records, slots: IntArray, lengths: IntArray, sources: IntArray
) -> IntArray:
    """Count a plan's drafts, and give drafter KV blocks to requests that begin to draft, oldest first.

    Returns:
        (n,) draft lengths, 0 where a request finds too few blocks.
    """
    state = engine[0]
    if state.draft_kv_share == 0:
        return lengths
    lengths = lengths.copy()
    possible, planned = 0, 0
    state.drafts_lack_blocks = 0
    for i in range(len(slots)):
        request, drafting = requests[slots[i]], lengths[i] > 0 and sources[i] == DRAFTER
        possible += request.may_draft
        if not drafting:
            continue
        planned += 1
        request.drafted_at = request.decode_steps
        known = request.prompt_tokens + request.emitted
        if request.draft_blocks == 0 and not allocate(engine, request, known, True):
            lengths[i], state.drafts_lack_blocks = 0, 1
    if possible > 0:
        state.drafting_share += (planned / possible - state.drafting_share) / IDLE_STEPS
    return lengths


@compiled
def _whole(state: Record, draft_blocks: int) -> int:
    """Blocks of the target that so many of the drafter's take."""
    return math.ceil(state.draft_kv_share * draft_blocks - 1e-9)
