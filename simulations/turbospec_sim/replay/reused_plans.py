"""Restores the steps of a trace that ran on a reused plan and have no line of their own.

An engine may reuse a plan without drafts for some steps. The next line of the trace has their number, emitted tokens
and seconds, in sums, and the position of each request. From these, one step is restored for each step that ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from turbospec.interface import Phase
from turbospec.observability.trace import TraceStep
from turbospec_sim.replay.arrivals import LONGEST_STEP

MAX_GAP_STEPS = 10_000
"""A longer gap is not restored: an engine plans again long before."""


@dataclass(slots=True, frozen=True)
class _Row:
    """A request before its first step in a gap (the steps between two lines), and the number of its steps there."""

    number: int
    class_id: int
    context_tokens: int
    emitted_tokens: int
    tokens_left: int
    first: int
    """Index of its first step in the gap, from 0."""
    steps: int


def with_reused_plan_steps(steps: Iterable[TraceStep]) -> list[TraceStep]:
    """The steps in the order of time, with those that were reported in sums; each of these emits one token per request.

    A request that is in the line after the gap ran in the gap's last steps, as many as its position advanced by. The
    remaining tokens are given to the requests that do not appear again, within their limits. Requests that arrived and
    finished within a gap are lost. Prompt tokens are divided among the steps of the gap.
    """
    lines = sorted(steps, key=lambda step: step.now)
    last_line = {number: line for line, step in enumerate(lines) for number in step.request_ids}
    emitted: dict[int, int] = {}
    """Tokens that each request has emitted, the first one included."""
    filled: list[TraceStep] = []
    for line, step in enumerate(lines):
        if line and step.reused_plan_steps:
            gone = {number for number in lines[line - 1].request_ids if last_line[number] < line}
            filled += _between(lines[line - 1], step, emitted, gone)
        filled.append(step)
        for row, number in enumerate(step.request_ids):
            known = emitted.get(number, 0)
            if step.phase[row] != Phase.PREFILL:
                known = max(known, step.emitted_tokens[row])
            emitted[number] = known + step.emitted[row]
    return filled


def _between(before: TraceStep, after: TraceStep, emitted: Mapping[int, int], gone: set[int]) -> list[TraceStep]:
    """The steps between two lines.

    Args:
        before, after: the lines.
        emitted: tokens that each known request has emitted by the end of the first line.
        gone: requests of the first line that are in no later one.
    """
    size = after.step - before.step - 1
    if not after.reused_plan_steps <= size <= MAX_GAP_STEPS:
        return []
    rows = [row for row in _continuing(after, emitted, size) if row.steps]
    tokens = round(after.reused_plan_tokens * size / after.reused_plan_steps) - sum(row.steps for row in rows)
    if after.reused_plan_prefill_tokens:  # the first tokens of the requests that joined are among them
        tokens -= sum(
            phase != Phase.PREFILL and not emitted.get(number)
            for number, phase in zip(after.request_ids, after.phase, strict=True)
        )
    rows = sorted(rows + _finished(before, emitted, gone, tokens, size), key=lambda row: row.number)
    seconds = after.reused_plan_seconds / after.reused_plan_steps
    prefill_tokens = after.reused_plan_prefill_tokens // after.reused_plan_steps
    began = before.now + before.step_seconds
    room = max(after.now - began, 0.0) / size
    # An engine that was idle in the gap was so after its last requests had finished.
    spacing = room if room <= LONGEST_STEP * seconds else seconds
    return [
        _step(before, rows, place, now=began + place * spacing, seconds=seconds, prefill_tokens=prefill_tokens)
        for place in range(size)
        if any(row.first <= place < row.first + row.steps for row in rows)
    ]


def _continuing(after: TraceStep, emitted: Mapping[int, int], size: int) -> list[_Row]:
    rows: list[_Row] = []
    for row, number in enumerate(after.request_ids):
        if after.phase[row] == Phase.PREFILL:
            continue
        told = after.emitted_tokens[row]
        advanced = min(max(told - max(emitted.get(number, 0), 1), 0), size)
        rows.append(
            _Row(
                number, after.class_ids[row], after.context_tokens[row] - advanced, told - advanced,
                after.tokens_left[row] + advanced, size - advanced, advanced,
            )
        )  # fmt: skip
    return rows


def _finished(before: TraceStep, emitted: Mapping[int, int], gone: set[int], tokens: int, size: int) -> list[_Row]:
    """The requests that do not appear again, each with a share of the remaining tokens."""
    rows = [
        _Row(
            number, before.class_ids[row], before.context_tokens[row] + before.emitted[row], emitted[number],
            left, 0, min(left, size),
        )
        for row, number in enumerate(before.request_ids)
        if number in gone
        and before.phase[row] != Phase.PREFILL
        and (left := before.tokens_left[row] - before.emitted[row]) > 0
    ]  # fmt: skip
    most = sum(row.steps for row in rows)
    if most <= tokens:
        return rows
    return [replace(row, steps=row.steps * max(tokens, 0) // most) for row in rows]


def _step(
    before: TraceStep, rows: Sequence[_Row], place: int, *, now: float, seconds: float, prefill_tokens: int
) -> TraceStep:
    """One step of a gap, with its requests."""
    inside = [(row, place - row.first) for row in rows if row.first <= place < row.first + row.steps]
    size = len(inside)
    context = [row.context_tokens + done for row, done in inside]
    told = [row.emitted_tokens + done for row, done in inside]
    return replace(
        before,
        step=before.step + 1 + place,
        now=now,
        request_ids=[row.number for row, _ in inside],
        phase=[int(Phase.FIRST_DECODE if emitted == 1 else Phase.DECODE) for emitted in told],
        class_ids=[row.class_id for row, _ in inside],
        context_tokens=context,
        emitted_tokens=told,
        tokens_left=[row.tokens_left - done for row, done in inside],
        **dict.fromkeys(
            ("drafter_lag_tokens", "draft_limits", "planned", "proposed", "drafted", "accepted"), [0] * size
        ),
        emitted=[1] * size,
        truncated=[False] * size,
        waiting_requests=0,
        waiting_seconds=0.0,
        draft_rows=[],
        draft_context_tokens=0,
        catch_up_tokens=0,
        tokens_batched=size + prefill_tokens,
        padded_tokens=size + prefill_tokens,
        prefill_tokens=prefill_tokens,
        attended_tokens=sum(context) + size + prefill_tokens,
        failures=0,
        predicted_tokens=None,
        predicted_seconds=None,
        draft_seconds=0.0,
        verify_seconds=seconds,
        step_seconds=seconds,
        decision_seconds=0.0,
        probe=False,
        reason="",
        reused_plan_steps=0,
        reused_plan_tokens=0,
        reused_plan_prefill_tokens=0,
        reused_plan_seconds=0.0,
    )
