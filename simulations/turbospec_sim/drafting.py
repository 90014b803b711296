"""The simulated drafter: which passes it runs for a plan, what they cost, and what its KV cache has seen.

Two ways to run it. A ragged drafter serves, pass by pass, the requests that still draft; what others emit meanwhile is
missing from its cache until they draft again. A batch drafter, vLLM's, runs every pass over the whole batch up to
the longest draft; where its first pass runs in every step, drafts or not, its cache never misses anything.
"""

from __future__ import annotations

import numpy as np

from turbospec.interface import IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.records import Record, Records

ORDINARY_TOKENS = 2
"""Most tokens that a first pass feeds for a request that drafted in the step before: the target's own token, and the
last draft token if it was accepted."""


@compiled
def known_tokens(request: Record) -> int:
    """Tokens of a request that its drafter could have seen: those in the target's cache and, past the prompt, the one
    that was emitted last."""
    return min(request.computed + 1, request.prompt_tokens + request.emitted)


@compiled
def is_prefilling(request: Record) -> bool:
    return request.emitted == 0 or request.prompt_tokens + request.emitted - request.computed > 1


@compiled
def drafter_lag_tokens(engine: Records, request: Record) -> int:
    """Tokens that the drafter missed beyond those that any pass feeds it."""
    state = engine[0]
    if state.first_pass_every_step:
        return 0
    ordinary = ORDINARY_TOKENS
    if state.batch_drafter and state.draft_before_emit:
        # The step that was just verified is drafted after as a whole, prompts included.
        ordinary = max(ordinary, request.step_tokens + 1)
    return max(known_tokens(request) - request.draft_computed - ordinary, 0)


@compiled
def first_pass_seconds(engine: Records, times: Records, requests: Records, slots: IntArray) -> float:
    """The pass that is part of every step, where there is one."""
    state, cost = engine[0], times[0]
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
    return (
        cost.draft_pass + cost.draft_row * rows + cost.draft_kv_token * context + cost.catch_up_token * fed
    )  # fmt: skip


@compiled
def draft(
    engine: Records, times: Records, requests: Records, slots: IntArray, lengths: IntArray
) -> tuple[float, IntArray, int, int]:
    """Draft for the (n,) requests of a view.

    Returns:
        Seconds, noise not included; the rows of each pass; KV tokens read, summed over the passes' rows; tokens that
        the first pass computed beyond those every step feeds it.
    """
    state, cost = engine[0], times[0]
    longest, total = 0, 0
    for length in lengths:
        longest = max(longest, length)
        total += length
    if longest == 0:
        return 0.0, np.zeros(0, np.int64), 0, 0
    size = len(slots)
    first = 1 if state.first_pass_every_step else 0
    passes = 1 if state.parallel_drafter else longest - first
    rows = np.zeros(passes, np.int64)
    read, fed = 0, 0
    for i in range(size):
        request, length = requests[slots[i]], lengths[i]
        known = known_tokens(request)
        request.drafts = length
        in_batch = state.batch_drafter and drafter_lag_tokens(engine, request) == 0
        if length > 0 or in_batch:
            fed += max(known - request.draft_computed - ORDINARY_TOKENS, 0)
            request.draft_computed = known
            if length > 0:
                request.draft_computed = known + (length - 1 if not state.parallel_drafter else 0)
        reach = longest if state.batch_drafter else length
        for number in range(passes):
            if state.parallel_drafter:
                rows[number] += 1 if reach > 0 else 0
                read += known if reach > 0 else 0
            elif number + first < reach:
                rows[number] += 1
                read += known + number + first
    if state.parallel_drafter and state.first_pass_every_step:
        # All is drafted in the pass that runs anyway.
        return 0.0, rows, 0, 0
    computed = rows.sum()
    if state.parallel_drafter:
        computed = size * longest if state.batch_drafter else total
    seconds = cost.draft_pass * passes + cost.draft_row * computed
    seconds += cost.draft_kv_token * read + cost.catch_up_token * fed
    if first == 0:
        seconds += cost.draft_start
    if not state.drafter_warm:
        state.drafter_warm = 1
        seconds += cost.cold_draft
    return seconds, rows, read, fed
