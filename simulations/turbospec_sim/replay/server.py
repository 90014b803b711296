"""Infers the settings of the engine that wrote a trace from its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from turbospec.interface import Phase
from turbospec.observability.trace import TraceStep
from turbospec_sim.limits import MAX_COUNT
from turbospec_sim.replay.recording import Recording
from turbospec_sim.scenario import Drafter, Server
from turbospec_sim.workload.acceptance import MAX_POSITIONS

UNLIMITED_SLOTS = 1024
"""Batch slots where no request ever waited, so that the trace shows no limit."""


def server_of(steps: Sequence[TraceStep], recording: Recording) -> Server:
    """The server's settings.

    If a step with the trace's largest batch left requests waiting, that batch is the number of batch slots. Otherwise
    the trace shows no limit: those that waited may have waited for room in a step, or for KV blocks.
    Likewise, if prompts were cut into chunks, the largest step is the token budget. The trace shows nothing about the
    KV cache, which is made large enough for all requests.
    """
    # A request is first seen with its first token where views are made after the target's pass and before emission.
    after = any(
        phase == Phase.FIRST_DECODE and number not in before
        for before, step in _with_earlier(steps)
        for number, phase in zip(step.request_ids, step.phase, strict=True)
    )
    # An engine that drafts first has filled the budget by then.
    scheduled = [step.tokens_batched - (0 if after else sum(step.drafted)) for step in steps]
    budget, cuts = max(scheduled), _cuts_prompts(steps)
    size = max(len(step.request_ids) for step in steps)
    full = any(
        step.waiting_requests and len(step.request_ids) == size and not (cuts and tokens == budget)
        for step, tokens in zip(steps, scheduled, strict=True)
    )
    slots = size if full else max(UNLIMITED_SLOTS, size)
    if not cuts:
        budget = max(budget, int(recording.prompt_tokens.max())) + slots * (1 + drafter_of(steps).max_draft)
    held = recording.prompt_tokens + np.maximum(recording.output_tokens, recording.max_tokens) + MAX_POSITIONS
    return Server(
        max_num_seqs=slots,
        max_num_batched_tokens=min(max(budget, 1), MAX_COUNT),
        kv_cache_tokens=int(held.sum()) + 1,
        block_size=1,
        emit="after_draft" if after else "before_draft",
    )


def drafter_of(steps: Sequence[TraceStep]) -> Drafter:
    """The drafter's settings."""
    drafting = [step for step in steps if any(step.drafted)]
    longest = [max(step.proposed) for step in drafting]
    passes = [len(step.draft_rows) for step in drafting]
    parallel = any(length > 1 for length in longest) and (all(number == 1 for number in passes) or not any(passes))
    return Drafter(
        max_draft=min(max(max(_limit(step), max(step.drafted, default=0)) for step in steps), MAX_POSITIONS),
        kind="parallel" if parallel else "sequential",
        batch=all(rows == len(step.request_ids) for step in drafting for rows in step.draft_rows),
        # One pass fewer than the drafter needs: the first pass was part of the step.
        first_pass_every_step=bool(drafting)
        and all(len(step.draft_rows) == (0 if parallel else max(step.planned) - 1) for step in drafting),
    )


def _limit(step: TraceStep) -> int:
    """Longest draft of the drafter; the view's `max_draft` includes that of a look-up."""
    return step.max_draft if step.lookup_lengths is None else max(step.draft_limits, default=0)


def _cuts_prompts(steps: Sequence[TraceStep]) -> bool:
    """Whether some prompt was computed in chunks."""
    begun: dict[int, int] = {}
    for step in steps:
        for number, phase, context in zip(step.request_ids, step.phase, step.context_tokens, strict=True):
            if phase == Phase.PREFILL:
                if context > begun.get(number, context):
                    return True
                begun[number] = context
    return False


def _with_earlier(steps: Sequence[TraceStep]) -> Iterator[tuple[set[int], TraceStep]]:
    """Each step but the first, with the requests seen before it."""
    seen: set[int] = set(steps[0].request_ids)
    for step in steps[1:]:
        yield seen, step
        seen.update(step.request_ids)
