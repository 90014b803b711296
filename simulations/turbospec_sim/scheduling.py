"""Continuous batching as vLLM V1 does it: which requests run in a step, and with how many tokens.

Running requests come first, oldest first, each with the tokens that it lacks in the KV cache and with its drafts. Then
waiting requests are admitted in order, as far as batch slots, the step's token budget and KV blocks allow; a request
needs the blocks of its whole prompt (`scheduler_reserve_full_isl`). A prompt is cut to a prefill chunk of what is left
of the budget. When a running request finds no KV block, the latest arrival is preempted: it loses its blocks, goes to
the head of the waiting queue, and recomputes its tokens later. A step that preempted a request admits none. Where the
drafter's KV blocks are counted, those of requests that have not drafted for long are given back first
(`drafter_memory.py`).

Source: vLLM 0.14, `vllm/v1/core/sched/scheduler.py`, with prefix caching reduced to a share of each prompt.
"""

from __future__ import annotations

import math

from turbospec.interface import IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.acceptance import begin_acceptance
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.drafter_memory import (
    allocate,
    blocks_lacking,
    drafter_in_use,
    free,
    free_drafter,
    give_back,
    give_back_idle,
)
from turbospec_sim.kv_gaps import NO_LAG
from turbospec_sim.randomness import key
from turbospec_sim.records import FREE_SLOTS, PREEMPTED, RUNNING, SLOT, TOKENS, Record, Records
from turbospec_sim.repeats import begin_repeats
from turbospec_sim.shared_prefix import free_prefixes


@compiled
def receive(engine: Records, offered: Records, now: float) -> None:
    """Put the requests that have reached the scheduler by now into the waiting queue."""
    state = engine[0]
    while state.tail < state.sent and offered[state.tail].sent + state.frontend_seconds <= now:
        state.tail += 1


@compiled
def next_arrival(engine: Records, offered: Records) -> float:
    """When the next request reaches the waiting queue; infinite if none was sent."""
    state = engine[0]
    if state.tail < state.sent:
        return offered[state.tail].sent + state.frontend_seconds
    return math.inf


@compiled
def queued(engine: Records) -> int:
    """Number of requests in the waiting queue, preempted ones included."""
    state = engine[0]
    return state.preempted + state.tail - state.head


@compiled
def schedule(arrays: EngineArrays) -> int:
    """Fill the batch with the next step's requests and their tokens, allocate KV blocks, and return their number."""
    size, budget = _fill_batch(arrays)
    state, waiting = arrays.engine[0], queued(arrays.engine)
    waiting = min(waiting, state.max_num_seqs - state.running)
    state.admissible = min(waiting, _room(arrays)) if waiting > 0 and budget == 0 else 0
    state.kv_limited = waiting > 0 and state.admissible == 0
    return size


@compiled
def _room(arrays: EngineArrays) -> int:
    """For how many requests like the next one KV blocks are free."""
    slot, state = _prepare_next(arrays), arrays.engine[0]
    if slot < 0:
        return 0
    request = arrays.requests[slot]
    lacking = blocks_lacking(arrays.engine, request, request.prompt_tokens + request.emitted, True)
    return state.free_blocks // max(lacking, 1)


@compiled
def _fill_batch(arrays: EngineArrays) -> tuple[int, int]:
    """Returns the number of requests, and the tokens that are left of the step's budget."""
    engine, requests, queues, batch = arrays.engine, arrays.requests, arrays.queues, arrays.batch
    state = engine[0]
    budget, size, place, preempted = state.max_num_batched_tokens, 0, 0, False
    while place < state.running and budget > 0:
        slot = queues[RUNNING, place]
        request = requests[slot]
        missing = request.prompt_tokens + request.emitted - request.computed
        tokens = min(missing, budget, state.long_prefill_token_threshold)
        request.drafts = min(request.drafts, budget - tokens)
        while not allocate(engine, request, request.computed + tokens + request.drafts, request.draft_blocks > 0):
            if give_back_idle(engine, requests, queues):
                continue
            if state.running == 1 and request.draft_blocks > 0:
                give_back(engine, request)
                continue
            preempted = True
            if _preempt_latest(engine, requests, queues) == slot:
                return size, budget
        batch[SLOT, size], batch[TOKENS, size] = slot, tokens
        budget -= tokens + request.drafts
        size += 1
        place += 1
    if preempted or (state.drafts_lack_blocks > 0 and state.running > 0):
        return size, budget
    while budget > 0 and state.running < state.max_num_seqs:
        slot = _prepare_next(arrays)
        if slot < 0:
            break
        request = requests[slot]
        missing = request.prompt_tokens + request.emitted - request.cached_tokens
        tokens = min(missing, budget, state.long_prefill_token_threshold)
        if not _admit(arrays, request):
            break
        request.computed = request.draft_computed = request.cached_tokens
        if state.draft_kv_share > 0 and request.draft_blocks == 0:
            request.draft_computed = 0
        if state.preempted > 0:
            state.preempted -= 1
        else:
            state.head += 1
            state.free_slots -= 1
        queues[RUNNING, state.running] = slot
        state.running += 1
        batch[SLOT, size], batch[TOKENS, size] = slot, tokens
        budget -= tokens
        size += 1
    return size, budget


@compiled
def drop_finished(engine: Records, requests: Records, queues: IntArray) -> None:
    """Take the requests that have emitted all output out of the running queue; free their batch slots and blocks."""
    state, kept = engine[0], 0
    for place in range(state.running):
        slot = queues[RUNNING, place]
        request = requests[slot]
        if request.emitted < request.output_tokens:
            queues[RUNNING, kept] = slot
            kept += 1
            continue
        free(engine, request)
        queues[FREE_SLOTS, state.free_slots] = slot
        state.free_slots += 1
    if kept < state.running:
        state.running = kept
        free_prefixes(engine, requests, queues)


@compiled
def send_next(engine: Records, offered: Records, now: float) -> None:
    """In a closed loop, the client whose request is finished sends its next one."""
    state = engine[0]
    if state.closed_loop and state.head > state.first_measured and state.sent < len(offered):
        offered[state.sent].sent = now
        state.sent += 1


@compiled
def _admit(arrays: EngineArrays, request: Record) -> bool:
    """Give a new request the KV blocks of its whole prompt; False, and no change, where too few are free.

    While the drafter is not in use, its blocks stay free, for the next draft of any request. The only request may take
    the drafter's memory.
    """
    engine, tokens = arrays.engine, request.prompt_tokens + request.emitted
    while not allocate(engine, request, tokens, True):
        if not give_back_idle(engine, arrays.requests, arrays.queues):
            return engine[0].running == 0 and allocate(engine, request, tokens, False)
    if not drafter_in_use(engine):
        free_drafter(engine, request)
    return True


@compiled
def _preempt_latest(engine: Records, requests: Records, queues: IntArray) -> int:
    state = engine[0]
    state.running -= 1
    slot = queues[RUNNING, state.running]
    request = requests[slot]
    free(engine, request)
    free_prefixes(engine, requests, queues)
    request.computed = request.draft_computed = request.drafts = request.gap_end = 0
    request.kept_since = NO_LAG
    queues[PREEMPTED, state.preempted] = slot
    state.preempted += 1
    state.preemptions += 1
    return slot


@compiled
def _prepare_next(arrays: EngineArrays) -> int:
    """Make the request that is next to be admitted ready in a batch slot, which is returned; -1 where none waits.

    Requests before it that need more KV blocks than the whole cache has are refused; in a closed loop their clients
    send the next ones.
    """
    state = arrays.engine[0]
    if state.preempted > 0:
        return arrays.queues[PREEMPTED, state.preempted - 1]
    while state.head < state.tail:
        asked = arrays.offered[state.head]
        kind = arrays.classes[asked.class_id]
        limit = kind.max_tokens if kind.max_tokens > 0 else asked.output_tokens
        if asked.prompt_tokens + limit <= state.num_blocks * state.block_size:
            break
        state.failed += state.head >= state.first_measured
        state.head += 1
        send_next(arrays.engine, arrays.offered, asked.sent + state.frontend_seconds)
    else:
        return -1
    slot = arrays.queues[FREE_SLOTS, state.free_slots - 1]
    request = arrays.requests[slot]
    request.index = state.head
    request.key = key(state.seed, state.head)
    request.class_id, request.told_class = asked.class_id, kind.told_class
    request.prompt_tokens, request.output_tokens = asked.prompt_tokens, asked.output_tokens
    request.max_tokens = limit
    cached = min(int(asked.prompt_tokens * kind.cached_share), asked.prompt_tokens - 1)
    request.cached_tokens = cached // state.block_size * state.block_size
    request.shared_tokens = request.cached_tokens if kind.cached_in_common else 0
    request.emitted = request.computed = request.draft_computed = request.blocks = request.draft_blocks = 0
    request.decode_steps = request.drafts = request.gap_end = request.drafted_at = request.may_draft = 0
    request.kept_since = NO_LAG
    request.step = -1
    begin_acceptance(request, kind, asked.sent - state.origin)
    begin_repeats(request, kind)
    return slot
