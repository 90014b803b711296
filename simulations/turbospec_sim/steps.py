"""The compiled parts of a step between two words with the controller, for both orders of drafting and emitting.

A call from Python costs about as much as the work of a small batch: each part is therefore one call.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.drafting import draft, first_pass_seconds, is_prefilling
from turbospec_sim.emission import emit
from turbospec_sim.records import VIEW_SLOT, Records
from turbospec_sim.scheduling import drop_finished, hold, next_arrival, receive, schedule
from turbospec_sim.step_time import noise
from turbospec_sim.timeline import mark
from turbospec_sim.verification import target_seconds, verify
from turbospec_sim.views import outcome_columns, view_columns, waiting

__all__ = ["draft_and_emit", "draft_and_verify", "next_arrival", "open_step", "schedule_step", "verify_batch"]

TARGET, DRAFTER = 0, 1
"""Parts of a step whose noise is drawn apart."""


@compiled
def schedule_step(
    now: float,
    engine: Records,
    requests: Records,
    queues: IntArray,
    offered: Records,
    classes: Records,
    batch: IntArray,
) -> int:
    """Take in what has arrived and fill the batch; the requests in it."""
    receive(engine, offered, now)
    return schedule(engine, requests, queues, offered, classes, batch)


@compiled
def open_step(
    size: int, now: float, engine: Records, requests: Records, queues: IntArray, offered: Records, batch: IntArray
) -> tuple[IntArray, int, int, float]:
    """Columns of the view of a step that drafts first, its prompt tokens, and who waits for how long."""
    columns, prefill_tokens = view_columns(engine, requests, batch, size)
    number, seconds = waiting(engine, requests, queues, offered, now)
    return columns, prefill_tokens, number, seconds


@compiled
def draft_and_verify(
    size: int,
    slots: IntArray,
    lengths: IntArray,
    now: float,
    engine: Records,
    totals: Records,
    times: Records,
    curve: FloatArray,
    padding: IntArray,
    gaps: IntArray,
    requests: Records,
    queues: IntArray,
    offered: Records,
    classes: Records,
    rates: FloatArray,
    lines: IntArray,
    values: FloatArray,
    batch: IntArray,
) -> tuple[float, IntArray, IntArray, float, int, int, float, float, int, int, int]:
    """Carry a plan out. The clock after it, outcome columns, and the outcome's figures in the order of its fields."""
    lengths = _reserved(engine, requests, slots, lengths)
    # Prompts are not in a drafter's pass that runs before the target has seen them.
    decoding = np.array([slot for slot in slots if not is_prefilling(requests[slot])], np.int64)
    first_seconds = first_pass_seconds(engine, times, requests, decoding)
    draft_seconds, rows, draft_context, catch_up = draft(engine, times, requests, slots, lengths)
    target, prompts, tokens, with_padding, prefill, context = target_seconds(
        times, curve, padding, requests, batch, size
    )
    seed, step = engine[0].seed, engine[0].step
    draft_seconds *= noise(times, seed, step, DRAFTER)
    varied = noise(times, seed, step, TARGET)
    verify_seconds = (target + first_seconds) * varied
    host_seconds = times[0].host + times[0].host_request * size + times[0].decision
    step_seconds = host_seconds + draft_seconds + verify_seconds
    verify(engine, totals, requests, classes, rates, lines, values, batch, size)
    outcome = outcome_columns(requests, slots, step)
    _account(engine, totals, size, prefill, host_seconds, draft_seconds, verify_seconds, prompts * varied)
    _close(engine, totals, gaps, requests, queues, offered, batch, size, now + step_seconds)
    return (
        now + step_seconds, outcome, rows, draft_seconds, draft_context, catch_up,
        verify_seconds, step_seconds, tokens, with_padding, context,
    )  # fmt: skip


@compiled
def verify_batch(
    size: int,
    drafted_slots: IntArray,
    now: float,
    engine: Records,
    totals: Records,
    times: Records,
    curve: FloatArray,
    padding: IntArray,
    gaps: IntArray,
    requests: Records,
    queues: IntArray,
    offered: Records,
    classes: Records,
    rates: FloatArray,
    lines: IntArray,
    values: FloatArray,
    batch: IntArray,
) -> tuple[IntArray, int, int, float, IntArray, float, float, int, int, int, int]:
    """The first half of a step that drafts last: verify what the step before drafted.

    Returns:
        For the next plan: columns of its view, prompt tokens that it announces, who waits for how long. For the outcome
        of the last one, whose requests `drafted_slots` are: its columns, seconds of the target's pass and of the host,
        tokens, padded, of prompts, and KV tokens.
    """
    target, prompts, tokens, with_padding, prefill, context = target_seconds(
        times, curve, padding, requests, batch, size
    )
    seed, step = engine[0].seed, engine[0].step
    verify(engine, totals, requests, classes, rates, lines, values, batch, size)
    outcome = outcome_columns(requests, drafted_slots, step)
    columns, announced = view_columns(engine, requests, batch, size)
    first_seconds = first_pass_seconds(engine, times, requests, columns[VIEW_SLOT])
    varied = noise(times, seed, step, TARGET)
    verify_seconds = (target + first_seconds) * varied
    host_seconds = times[0].host + times[0].host_request * size
    if columns.shape[1]:
        host_seconds += times[0].decision
    number, seconds = waiting(engine, requests, queues, offered, now)
    _account(engine, totals, size, prefill, host_seconds, 0.0, verify_seconds, prompts * varied)
    return (
        columns, announced, number, seconds, outcome,
        verify_seconds, host_seconds, tokens, with_padding, prefill, context,
    )  # fmt: skip


@compiled
def draft_and_emit(
    size: int,
    slots: IntArray,
    lengths: IntArray,
    now: float,
    engine: Records,
    totals: Records,
    times: Records,
    curve: FloatArray,
    padding: IntArray,
    gaps: IntArray,
    requests: Records,
    queues: IntArray,
    offered: Records,
    classes: Records,
    rates: FloatArray,
    lines: IntArray,
    values: FloatArray,
    batch: IntArray,
) -> tuple[float, IntArray, float, int, int]:
    """The second half: draft for the next step, then emit. The clock after it, and what was drafted."""
    draft_seconds, rows, draft_context, catch_up = draft(engine, times, requests, slots, lengths)
    draft_seconds *= noise(times, engine[0].seed, engine[0].step, DRAFTER)
    _account(engine, totals, size, 0, 0.0, draft_seconds, 0.0, 0.0)
    _close(engine, totals, gaps, requests, queues, offered, batch, size, now + draft_seconds)
    return now + draft_seconds, rows, draft_seconds, draft_context, catch_up


@compiled
def _reserved(engine: Records, requests: Records, slots: IntArray, lengths: IntArray) -> IntArray:
    """Find blocks for drafts, oldest request first, and shorten those that find none."""
    state = engine[0]
    lengths = lengths.copy()
    for i in range(len(slots)):
        if lengths[i] == 0:
            continue
        request = requests[slots[i]]
        known = request.prompt_tokens + request.emitted
        room = (request.blocks + state.free_blocks) * state.block_size + request.shared_tokens - known
        lengths[i] = min(lengths[i], room)
        hold(engine, request, known + lengths[i])
    return lengths


@compiled
def _close(
    engine: Records,
    totals: Records,
    gaps: IntArray,
    requests: Records,
    queues: IntArray,
    offered: Records,
    batch: IntArray,
    size: int,
    now: float,
) -> None:
    finished = engine[0].finished
    emit(engine, totals, gaps, requests, offered, batch, size, now)
    if engine[0].finished > finished:
        drop_finished(engine, requests, queues)
    engine[0].step += 1
    totals[0].steps += 1
    mark(engine, totals, now)


@compiled
def _account(
    engine: Records,
    totals: Records,
    size: int,
    prefill_tokens: int,
    host_seconds: float,
    draft_seconds: float,
    verify_seconds: float,
    prefill_seconds: float,
) -> None:
    """Add what a step, or a part of it, took, and how many ran and waited meanwhile."""
    state, sums = engine[0], totals[0]
    seconds = host_seconds + draft_seconds + verify_seconds
    sums.prefill_tokens += prefill_tokens
    sums.host_seconds += host_seconds
    sums.draft_seconds += draft_seconds
    sums.verify_seconds += verify_seconds
    sums.prefill_seconds += prefill_seconds
    sums.running_seconds += size * seconds
    sums.waiting_seconds += (state.preempted + state.tail - state.head) * seconds
