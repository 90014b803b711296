"""The simulated drafter: which passes it runs for a plan, how long they take, and what its KV cache holds.

There are two kinds. The passes of a ragged drafter run over the requests that still draft; a request that drafts
nothing, or from the look-up, builds up drafter KV lag. A batch drafter, as vLLM's, runs every pass over the whole
batch, up to the longest draft; if it is parallel, its only pass always makes drafts of `max_draft` tokens. Where its
first pass runs in every step, with drafts or without, it has no lag.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import IntArray, Source
from turbospec.runtime.kernels import compiled
from turbospec_sim.kv_gaps import NO_LAG, goes_on_with_gap, keep
from turbospec_sim.limits import MAX_COUNT
from turbospec_sim.records import SLOT, Record, Records

DRAFTER = Source.DRAFTER.value
ALL_TOKENS = MAX_COUNT
"""A request's `selected` where no selection shortens its draft."""
ORDINARY_TOKENS = 2
"""Most tokens that a first pass computes for a request that drafted in the step before: the target's own token, and the
last draft token if it was accepted."""


class DrafterPasses(NamedTuple):
    """The drafter's passes in one step."""

    seconds: float
    """At the usual pace, until the step applies its own."""
    rows: IntArray
    """(passes,) as `StepOutcome.draft_rows`."""
    context_tokens: int
    """KV tokens read, summed over passes and the requests in each."""
    catch_up_tokens: int
    """Tokens that the first pass computed beyond `ORDINARY_TOKENS` a request."""


@compiled
def known_tokens(request: Record) -> int:
    """Tokens of a request that the drafter can compute: those in the target's KV cache and, past the prompt, the token
    that was emitted last."""
    return min(request.computed + 1, request.prompt_tokens + request.emitted)


@compiled
def is_prefilling(request: Record) -> bool:
    return request.emitted == 0 or request.prompt_tokens + request.emitted - request.computed > 1


@compiled
def drafter_lag_tokens(engine: Records, request: Record) -> int:
    """Drafter KV lag: tokens that the drafter's KV cache lacks beyond those that any first pass computes, and that it
    will compute when it drafts."""
    state = engine[0]
    if state.first_pass_every_step or goes_on_with_gap(engine, request):
        return 0
    ordinary = ORDINARY_TOKENS
    if state.batch_drafter and state.draft_before_emit:
        # The drafter's first pass computes all tokens of the step that was just verified, prompts included.
        ordinary = max(ordinary, request.step_tokens + 1)
    return max(known_tokens(request) - request.draft_computed - ordinary, 0)


@compiled
def run_first_pass(engine: Records, requests: Records, slots: IntArray) -> float:
    """Run the drafter's pass that is part of every step; returns its seconds, 0 where there is none."""
    state, cost = engine[0], engine[0].times
    if not state.first_pass_every_step or len(slots) == 0:
        return 0.0
    fed, context = 0, 0
    for slot in slots:
        request = requests[slot]
        known = known_tokens(request)
        fed += max(known - request.draft_computed - ORDINARY_TOKENS, 0)
        context += known
        request.draft_computed = known
    rows = len(slots) * (state.max_draft if state.parallel_drafter else 1)
    seconds = cost.draft_pass + cost.draft_row * rows + cost.draft_kv_token * context + cost.catch_up_token * fed
    return seconds + cost.catch_up if fed > 0 else seconds


@compiled
def draft(engine: Records, requests: Records, slots: IntArray, lengths: IntArray, sources: IntArray) -> DrafterPasses:
    """Draft `lengths[i]` tokens for the request in batch slot `slots[i]`; `sources[i]` makes them."""
    state, cost = engine[0], engine[0].times
    longest = 0
    for i in range(len(slots)):
        request = requests[slots[i]]
        request.drafts, request.source = min(lengths[i], request.selected), sources[i]
        request.selected = ALL_TOKENS
        if sources[i] == DRAFTER:
            longest = max(longest, lengths[i])
    if longest == 0:
        return DrafterPasses(0.0, np.zeros(0, np.int64), 0, 0)
    size = len(slots)
    first = 1 if state.first_pass_every_step else 0
    passes = 1 if state.parallel_drafter else longest - first
    rows = np.zeros(passes, np.int64)
    read, fed = 0, 0
    for i in range(size):
        request, length = requests[slots[i]], lengths[i] if sources[i] == DRAFTER else 0
        known = known_tokens(request)
        in_batch = state.batch_drafter and drafter_lag_tokens(engine, request) == 0
        in_batch = in_batch and (state.draft_kv_share == 0 or request.draft_blocks > 0)
        if length > 0 or in_batch:
            if goes_on_with_gap(engine, request):
                request.gap_end = known
            else:
                fed += max(known - request.draft_computed - ORDINARY_TOKENS, 0)
            request.draft_computed, request.kept_since = known, NO_LAG
            if length > 0:
                request.draft_computed = known + (length - 1 if not state.parallel_drafter else 0)
        reach = longest if state.batch_drafter else length
        for number in range(passes):
            if state.parallel_drafter:
                rows[number] += 1 if state.batch_drafter else length
                read += known if reach > 0 else 0
            elif number + first < reach:
                rows[number] += 1
                read += known + number + first
    if state.parallel_drafter and state.first_pass_every_step:
        # The pass that runs in every step has drafted all tokens.
        return DrafterPasses(0.0, np.zeros(0, np.int64), 0, 0)
    computed = rows.sum()
    if state.parallel_drafter and state.batch_drafter:
        computed *= state.max_draft
    seconds = cost.draft_pass * passes + cost.draft_row * computed
    seconds += cost.draft_kv_token * read + cost.catch_up_token * fed
    if fed > 0:
        seconds += cost.catch_up
    if first == 0:
        seconds += cost.draft_start
    if state.draft_steps == 0:
        seconds += cost.cold_draft
    state.draft_steps += 1
    return DrafterPasses(seconds, rows, read, fed)


@compiled
def keep_inputs(engine: Records, requests: Records, batch: IntArray, size: int) -> None:
    """Keep the tokens of a finished step that the drafter has not computed, where a server keeps only so many."""
    state = engine[0]
    if state.kept_limit == 0 or state.first_pass_every_step:
        return
    for row in range(size):
        request = requests[batch[SLOT, row]]
        if known_tokens(request) - request.draft_computed > ORDINARY_TOKENS:
            keep(engine, request, request.step_tokens)
