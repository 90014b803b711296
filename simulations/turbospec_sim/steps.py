"""The compiled parts of a step between two calls of the controller, for both orders of drafting and emitting.

Calling compiled code from Python takes about as long as the work on a small batch. Each part is therefore one call. It
takes the engine's arrays loose (see `arrays.EngineArrays`) and returns a plain tuple in the order of a NamedTuple's
fields, because numba makes a NamedTuple twice as slowly as Python does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from turbospec.interface import IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.appending import append
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.drafter_memory import allocate_most, reserve_drafts
from turbospec_sim.drafting import DRAFTER, DrafterPasses, draft, is_prefilling, keep_inputs, run_first_pass
from turbospec_sim.emission import emit
from turbospec_sim.pace import DRAFTER_PART, HOST_PART, TARGET_PART, begin_step, pace
from turbospec_sim.records import SLOT, TOKENS, Records
from turbospec_sim.scheduling import drop_finished, next_arrival, queued, receive, schedule
from turbospec_sim.timeline import take_snapshot
from turbospec_sim.verification import target_pass, verify
from turbospec_sim.views import VIEW_SLOT, outcome_columns, view_columns, waiting

__all__ = ["draft_and_emit", "draft_and_verify", "next_arrival", "open_step", "schedule_batch", "verify_batch"]


class OpenedStep(NamedTuple):
    """A scheduled step that drafts first, and what its view says."""

    size: int
    """Requests in the batch; with 0 there is no step."""
    columns: IntArray
    """As `views.view_columns` returns them."""
    prefill_tokens: int
    waiting_requests: int
    waiting_seconds: float


class FinishedStep(NamedTuple):
    """A plan that was executed, drafts and verification, by the names of `StepOutcome` where it has one."""

    now: float
    """Clock at its end, seconds."""
    judged: IntArray
    """As `views.outcome_columns` returns them."""
    draft_rows: IntArray
    draft_context_tokens: int
    catch_up_tokens: int
    tokens_batched: int
    padded_tokens: int
    context_tokens: int
    draft_seconds: float
    verify_seconds: float
    step_seconds: float
    piecewise: bool


class ScheduledBatch(NamedTuple):
    """A scheduled step that drafts last."""

    size: int
    """Requests in the batch; with 0 there is no step."""
    tokens: int
    """Of the target's pass, drafts included."""
    prefill_tokens: int
    drafts: IntArray
    """(n,) tokens that it verifies of each draft of the step before, with padding; 0 for requests that are not in the
    batch."""


class VerifiedBatch(NamedTuple):
    """The first half of a step that drafts last: its verification, and what the view for its drafts says."""

    judged: IntArray
    """Drafts of the step before, as `views.outcome_columns` returns them."""
    tokens_batched: int
    padded_tokens: int
    prefill_tokens: int
    context_tokens: int
    piecewise: bool
    verify_seconds: float
    host_seconds: float
    columns: IntArray
    """Of the view, as `views.view_columns` returns them."""
    next_prefill_tokens: int
    """Of the view: prompt tokens that the next step can compute."""
    waiting_requests: int
    waiting_seconds: float
    admitted_requests: int
    """Waiting requests that lack nothing but room in the step's token budget."""


class Spent(NamedTuple):
    """Seconds that a step, or a part of it, took."""

    host: float
    draft: float
    verify: float
    prefill: float
    """Of `verify`, what prompts added to the target's pass."""


def open_step(arrays: EngineArrays, now: float) -> OpenedStep:
    """Receive requests and schedule the next step, which drafts first."""
    return OpenedStep(*_open_step(now, *arrays))


def draft_and_verify(
    arrays: EngineArrays,
    size: int,
    slots: IntArray,
    lengths: IntArray,
    sources: IntArray,
    padded_length: int,
    append_limits: IntArray,
    now: float,
) -> FinishedStep:
    """Execute a plan: draft `lengths[i]` tokens of `sources[i]` for batch slot `slots[i]`, append up to
    `append_limits[i]` of the look-up (empty: none), verify the `size` requests, emit."""
    arrays.engine["padded_length"] = padded_length
    return FinishedStep(*_draft_and_verify(size, slots, lengths, sources, append_limits, now, *arrays))


def schedule_batch(arrays: EngineArrays, drafted_slots: IntArray, now: float) -> ScheduledBatch:
    """Receive requests and schedule a step that drafts last; the step before drafted for `drafted_slots`."""
    return ScheduledBatch(*_schedule_batch(drafted_slots, now, *arrays))


def verify_batch(arrays: EngineArrays, size: int, drafted_slots: IntArray, decisions: int, now: float) -> VerifiedBatch:
    """Verify what the step before drafted for `drafted_slots`, in a scheduled batch of `size` requests.

    This is the step's first half; `draft_and_emit` is the second. `decisions` were made since it began.
    """
    return VerifiedBatch(*_verify_batch(size, drafted_slots, decisions, now, *arrays))


def draft_and_emit(
    arrays: EngineArrays,
    size: int,
    slots: IntArray,
    lengths: IntArray,
    sources: IntArray,
    padded_length: int,
    now: float,
) -> DrafterPasses:
    """The second half: draft `lengths[i]` tokens of `sources[i]` for batch slot `slots[i]`, to verify next, then emit.

    The drafter's seconds include its pace.
    """
    arrays.engine["padded_length"] = padded_length
    return DrafterPasses(*_draft_and_emit(size, slots, lengths, sources, now, *arrays))


@compiled
def _open_step(now: float, *loose: Records) -> tuple[Any, ...]:
    arrays = EngineArrays(*loose)
    engine, offered = arrays.engine, arrays.offered
    receive(engine, offered, now)
    size = schedule(arrays)
    columns, prefill_tokens = view_columns(arrays, size)
    number, seconds = waiting(engine, offered, now)
    return size, columns, prefill_tokens, number, seconds


@compiled
def _draft_and_verify(
    size: int,
    slots: IntArray,
    lengths: IntArray,
    sources: IntArray,
    append_limits: IntArray,
    now: float,
    *loose: Records,
) -> tuple[Any, ...]:
    arrays = EngineArrays(*loose)
    engine, requests, totals = arrays.engine, arrays.requests, arrays.totals
    lengths = _reserved(engine, requests, slots, lengths, sources)
    # A pass that drafts before the target has computed a prompt cannot include that prompt.
    decoding = np.array([slot for slot in slots if not is_prefilling(requests[slot])], np.int64)
    first_seconds = run_first_pass(engine, requests, decoding)
    begin_step(engine)
    draft_pace = pace(arrays, DRAFTER_PART, now)
    drafter = draft(engine, requests, slots, lengths, sources)
    searched = append(arrays, slots, append_limits) if len(append_limits) else 0
    target = target_pass(arrays, size)
    times, step = engine[0].times, engine[0].step
    draft_seconds = drafter.seconds * draft_pace
    target_pace = pace(arrays, TARGET_PART, now)
    verify_seconds = (target.seconds + first_seconds) * target_pace
    host_seconds = times.host + times.host_request * size + times.lookup_request * searched + times.decision
    host_seconds *= pace(arrays, HOST_PART, now)
    step_seconds = host_seconds + draft_seconds + verify_seconds
    verify(arrays, size)
    judged = outcome_columns(requests, slots, step)
    totals[0].prefill_tokens += target.prefill_tokens
    _account(
        engine, totals, size, Spent(host_seconds, draft_seconds, verify_seconds, target.prefill_seconds * target_pace)
    )
    _close(arrays, size, now + step_seconds)
    return (
        now + step_seconds, judged, drafter.rows, drafter.context_tokens, drafter.catch_up_tokens,
        target.tokens, target.padded_tokens, target.context_tokens, draft_seconds, verify_seconds, step_seconds,
        target.piecewise,
    )  # fmt: skip


@compiled
def _schedule_batch(drafted_slots: IntArray, now: float, *loose: Records) -> tuple[Any, ...]:
    arrays = EngineArrays(*loose)
    requests, batch = arrays.requests, arrays.batch
    receive(arrays.engine, arrays.offered, now)
    size = schedule(arrays)
    of_slot, tokens, prefill_tokens = np.zeros(len(requests), np.int64), 0, 0
    for row in range(size):
        slot, own = batch[SLOT, row], batch[TOKENS, row]
        tokens += own
        if is_prefilling(requests[slot]):
            prefill_tokens += own
        else:
            of_slot[slot] = max(requests[slot].drafts, arrays.engine[0].padded_length)
            tokens += of_slot[slot]
    return size, tokens, prefill_tokens, of_slot[drafted_slots]


@compiled
def _verify_batch(size: int, drafted_slots: IntArray, decisions: int, now: float, *loose: Records) -> tuple[Any, ...]:
    arrays = EngineArrays(*loose)
    engine, requests, offered = arrays.engine, arrays.requests, arrays.offered
    totals = arrays.totals
    begin_step(engine)
    target = target_pass(arrays, size)
    times, step = engine[0].times, engine[0].step
    verify(arrays, size)
    judged = outcome_columns(requests, drafted_slots, step)
    columns, next_prefill_tokens = view_columns(arrays, size)
    first_seconds = run_first_pass(engine, requests, columns[VIEW_SLOT])
    target_pace = pace(arrays, TARGET_PART, now)
    verify_seconds = (target.seconds + first_seconds) * target_pace
    host_seconds = times.host + times.host_request * size + times.decision * decisions
    if columns.shape[1]:
        host_seconds += times.decision
    host_seconds *= pace(arrays, HOST_PART, now)
    number, seconds = waiting(engine, offered, now)
    totals[0].prefill_tokens += target.prefill_tokens
    _account(engine, totals, size, Spent(host_seconds, 0.0, verify_seconds, target.prefill_seconds * target_pace))
    return (
        judged, target.tokens, target.padded_tokens, target.prefill_tokens, target.context_tokens,
        target.piecewise, verify_seconds, host_seconds, columns, next_prefill_tokens, number, seconds,
        engine[0].admissible,
    )  # fmt: skip


@compiled
def _draft_and_emit(
    size: int, slots: IntArray, lengths: IntArray, sources: IntArray, now: float, *loose: Records
) -> tuple[Any, ...]:
    arrays = EngineArrays(*loose)
    engine, totals = arrays.engine, arrays.totals
    draft_pace = pace(arrays, DRAFTER_PART, now)
    lengths = reserve_drafts(engine, arrays.requests, slots, lengths, sources)
    drafter = draft(engine, arrays.requests, slots, lengths, sources)
    seconds = drafter.seconds * draft_pace
    _account(engine, totals, size, Spent(0.0, seconds, 0.0, 0.0))
    _close(arrays, size, now + seconds)
    return seconds, drafter.rows, drafter.context_tokens, drafter.catch_up_tokens


@compiled
def _reserved(engine: Records, requests: Records, slots: IntArray, lengths: IntArray, sources: IntArray) -> IntArray:
    """Allocate KV blocks for drafts, oldest request first, and shorten the drafts that find too few."""
    lengths = reserve_drafts(engine, requests, slots, lengths, sources).copy()
    for i in range(len(slots)):
        if lengths[i] == 0:
            continue
        request = requests[slots[i]]
        known = request.prompt_tokens + request.emitted
        lengths[i] = allocate_most(engine, request, known, lengths[i], sources[i] == DRAFTER)
    return lengths


@compiled
def _close(arrays: EngineArrays, size: int, now: float) -> None:
    """End a step at `now`: emit its tokens and drop the requests that are finished."""
    engine, totals = arrays.engine, arrays.totals
    finished = engine[0].finished
    keep_inputs(engine, arrays.requests, arrays.batch, size)
    emit(arrays, size, now)
    if engine[0].finished > finished:
        drop_finished(engine, arrays.requests, arrays.queues)
    engine[0].step += 1
    totals[0].steps += 1
    take_snapshot(engine, totals, now)


@compiled
def _account(engine: Records, totals: Records, size: int, spent: Spent) -> None:
    """Add to the totals what a step of `size` requests, or a part of it, took, and how many waited meanwhile."""
    sums = totals[0]
    seconds = spent.host + spent.draft + spent.verify
    sums.host_seconds += spent.host
    sums.draft_seconds += spent.draft
    sums.verify_seconds += spent.verify
    sums.prefill_seconds += spent.prefill
    sums.running_seconds += size * seconds
    sums.waiting_seconds += queued(engine) * seconds
