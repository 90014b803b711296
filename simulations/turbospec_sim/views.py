"""The columns of a `StepView` and of a `StepOutcome`, from the simulated engine's records."""

from __future__ import annotations

import numpy as np

from turbospec.interface import IntArray, Phase
from turbospec.runtime.kernels import compiled
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.drafter_memory import blocks_lacking
from turbospec_sim.drafting import drafter_lag_tokens, is_prefilling
from turbospec_sim.kv_gaps import NEVER_DRAFTS, lag_is_lost
from turbospec_sim.records import SLOT, TOKENS, Records
from turbospec_sim.repeats import look_up
from turbospec_sim.scheduling import queued

PREFILL, FIRST_DECODE, DECODE = Phase.PREFILL.value, Phase.FIRST_DECODE.value, Phase.DECODE.value

COLUMNS = 11
"""Batch slot, then as in `StepView`: request id, phase, context, emitted, left, drafter KV lag, class, draft limit, and
as in `LookupView`: length, score."""
VIEW_SLOT = 0
"""Row of a view's columns that holds the requests' batch slots."""


@compiled
def view_columns(arrays: EngineArrays, size: int) -> tuple[IntArray, int]:
    """(COLUMNS, n) the view's rows for the unfinished requests of a batch, and the view's prefill tokens.

    Where a step drafts first, these are its own prefill tokens. Where a step has just been verified and drafts are made
    for the next one, these are the prompt tokens of begun prefills that the next step can compute.
    """
    engine, requests, batch, classes = arrays.engine, arrays.requests, arrays.batch, arrays.classes
    state = engine[0]
    columns = np.empty((COLUMNS, size), np.int64)
    rows, prefill_tokens = 0, 0
    free = state.free_blocks * state.block_size
    for place in range(size):
        slot = batch[SLOT, place]
        request = requests[slot]
        if request.emitted >= request.output_tokens:
            continue
        left = request.max_tokens - request.emitted
        phase, limit, found, score = PREFILL, 0, 0, 0
        if is_prefilling(request):
            missing = request.prompt_tokens + request.emitted - request.computed
            prefill_tokens += missing if state.draft_before_emit else batch[TOKENS, place]
        else:
            phase = DECODE if request.decode_steps else FIRST_DECODE
            room = left - 1
            if not state.draft_before_emit:
                # Each draft alone fits in the free KV blocks; several drafts together may not.
                held = request.blocks * state.block_size + request.shared_tokens
                room = min(room, held + free - request.prompt_tokens - request.emitted)
            limit = min(state.max_draft, room)
            if state.max_lookup > 0:
                score = look_up(request, classes[request.class_id], 0).score
                found = min(state.max_lookup, room) if score > 0 else 0
            if state.gap_acceptance == NEVER_DRAFTS and lag_is_lost(engine, request):
                limit = 0
            if state.draft_kv_share > 0:
                begins = request.prompt_tokens + request.emitted
                if request.draft_blocks == 0 and blocks_lacking(engine, request, begins, True) > state.free_blocks:
                    limit = 0
        request.may_draft = limit > 0
        columns[0, rows] = slot
        columns[1, rows] = request.index
        columns[2, rows] = phase
        columns[3, rows] = request.computed
        columns[4, rows] = request.emitted
        columns[5, rows] = left
        columns[6, rows] = drafter_lag_tokens(engine, request)
        columns[7, rows] = request.told_class
        columns[8, rows] = max(limit, 0)
        columns[9, rows] = max(found, 0)
        columns[10, rows] = score
        rows += 1
    if state.draft_before_emit:
        prefill_tokens = min(prefill_tokens, state.max_num_batched_tokens)
    return columns[:, :rows], prefill_tokens


@compiled
def waiting(engine: Records, offered: Records, now: float) -> tuple[int, float]:
    """Number of waiting requests, and for how many seconds the first of those that were never admitted has waited."""
    state = engine[0]
    return queued(engine), now - offered[state.head].sent if state.tail > state.head else 0.0


@compiled
def outcome_columns(requests: Records, slots: IntArray, step: int) -> IntArray:
    """(5, n) drafted, accepted, emitted, truncated and appended for the rows of a view that a step has verified.

    Zeros for requests that were not in the step: preempted, or beyond its token budget.
    """
    columns = np.zeros((5, len(slots)), np.int64)
    for i in range(len(slots)):
        request = requests[slots[i]]
        if request.step == step:
            columns[0, i] = request.step_drafted
            columns[1, i] = min(request.step_accepted, request.step_emitted)
            columns[2, i] = request.step_emitted
            # The output ended at an accepted draft token: the draft tokens after it were not judged.
            columns[3, i] = request.step_emitted > 0 and request.step_emitted <= request.step_accepted
            columns[4, i] = request.step_appended
    return columns
