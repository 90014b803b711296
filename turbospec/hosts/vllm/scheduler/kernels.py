"""The scheduler's array arithmetic of each step, compiled.

In an engine core the processor's caches are cold when the scheduler runs: between two calls the process launches a
model and sends outputs. On arrays of a batch's size a numpy operation then takes about 5 µs, and a compiled function
about 8, however much it computes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from turbospec.interface import BoolArray, IntArray, Phase
from turbospec.runtime.kernels import compile_for, compiled

PREFILL, FIRST_DECODE, DECODE = Phase.PREFILL.value, Phase.FIRST_DECODE.value, Phase.DECODE.value
COMPUTED, EMITTED, OUTPUT, PROMPT, MOST, DRAFTS, MISSING = range(7)
"""Rows of `batch_columns`, tokens of each request: computed once the step has ended; emitted by the end of the steps in
flight, at least; output so far; of the prompt; most output; drafts that the step verifies; prefill left for later."""
EVERY = np.zeros(0, np.bool_)
"""In place of (n,) flags that are all set."""


@compiled
def batch_columns(
    read: IntArray, scheduled: IntArray, rows: IntArray, prompt_tokens: IntArray, max_tokens: IntArray
) -> tuple[IntArray, int, int, int, int, int, int, int]:
    """The columns and totals of a `ScheduledBatch`.

    Args:
        read: (n · 3,) of each request: computed tokens, tokens, placeholders of tokens in flight.
        scheduled: (n,) tokens that the step computes for each.
        rows: (n,) in the two arrays that follow.
        prompt_tokens, max_tokens: of all known requests.

    Returns:
        (7, n) columns, whose rows are named above; tokens computed; KV tokens attended to; the longest context; prompt
        tokens computed; prefill left; drafts; requests that the step samples for.
    """
    n = len(rows)
    columns = np.empty((7, n), np.int64)
    tokens = context = longest = prefill = missing = drafts = sampling = 0
    for i in range(n):
        before, output = read[3 * i], read[3 * i + 1] - prompt_tokens[rows[i]]
        placeholders, prompt = read[3 * i + 2], prompt_tokens[rows[i]]
        computed, known = before + scheduled[i], read[3 * i + 1] + placeholders
        columns[COMPUTED, i], columns[OUTPUT, i], columns[PROMPT, i] = computed, output, prompt
        # A step that was scheduled before this one, and has not ended, samples at least one token.
        columns[EMITTED, i], columns[MOST, i] = output + (1 if placeholders > 0 else 0), max_tokens[rows[i]]
        columns[DRAFTS, i], columns[MISSING, i] = max(computed - known, 0), max(known - computed, 0)
        tokens += scheduled[i]
        context += computed
        longest = max(longest, computed)
        if before < max(known - 1, prompt):
            prefill += scheduled[i]
        drafts += columns[DRAFTS, i]
        missing += columns[MISSING, i]
        sampling += columns[MISSING, i] == 0
    return columns, tokens, context, longest, prefill, missing, drafts, sampling


@compiled
def can_catch_up(
    rows: IntArray,
    lag_tokens: IntArray,
    lag_since: IntArray,
    unresolved: IntArray,
    limits: tuple[int, int, bool],
) -> BoolArray:
    """(n,) whether each request's lag, if any, can be caught up.

    Args:
        rows: (n,) in the three arrays that follow.
        lag_tokens, lag_since, unresolved: of `KnownRequests`.
        limits: `DrafterLag.catch_up_limits`.
    """
    first_kept, max_lag, asynchronous = limits
    can = np.empty(len(rows), np.bool_)
    for i in range(len(rows)):
        row = rows[i]
        kept = lag_since[row] >= first_kept and lag_tokens[row] <= max_lag
        can[i] = lag_tokens[row] == 0 or (kept and (unresolved[row] == 0 or not asynchronous))
    return can


@compiled
def longest_drafts(
    rows: IntArray, max_draft: IntArray, computed: IntArray, can_draft: BoolArray, longest: int, max_model_len: int
) -> IntArray:
    """(n,) longest draft of each request, however few tokens are left to emit; negative where it is too long.

    Args:
        rows: (n,) in `max_draft`.
        max_draft: that each known request allows.
        computed: (n,) tokens before the draft.
        can_draft: (n,), or `EVERY`; at most 0 elsewhere.
        longest: draft of the engine.
        max_model_len: of the engine.
    """
    lengths = np.empty(len(rows), np.int64)
    for i in range(len(rows)):
        lengths[i] = min(max_draft[rows[i]], longest, max_model_len - computed[i] - 2)
        if len(can_draft) and not can_draft[i]:
            lengths[i] = min(lengths[i], 0)
    return lengths


@compiled
def view_columns(
    columns: IntArray,
    rows: IntArray,
    numbers: IntArray,
    class_ids: IntArray,
    max_draft: IntArray,
    lag_tokens: IntArray,
    lag_since: IntArray,
    unresolved: IntArray,
    catch_up_limits: tuple[int, int, bool],
    longest: int,
    max_model_len: int,
    running: int,
    drafts_fit: bool,
) -> tuple[IntArray, int]:
    """(8, n) the arrays of a `StepView`, in its order; and the shortest of `longest_drafts`.

    Args:
        columns: of the batch.
        rows: (n,) in the six arrays that follow.
        numbers, class_ids, max_draft, lag_tokens, lag_since, unresolved: of `KnownRequests`.
        catch_up_limits: of `can_catch_up`.
        longest: draft of the engine.
        max_model_len: of the engine.
        running: steps in flight that vLLM does not count itself.
        drafts_fit: whether the step may draft at all.
    """
    can_draft = can_catch_up(rows, lag_tokens, lag_since, unresolved, catch_up_limits)
    allowed = longest_drafts(rows, max_draft, columns[COMPUTED], can_draft, longest, max_model_len)
    view, shortest = np.empty((8, len(rows)), np.int64), longest
    for i in range(len(rows)):
        row, prefilling = rows[i], columns[MISSING, i] > 0
        # A step in flight, and this one, each emit at least one token before drafts are made, except in prefill.
        emitted = columns[EMITTED, i] + (0 if prefilling else running + 1)
        # A step in flight may end a request.
        left = max(columns[MOST, i] - emitted, 0)
        view[0, i] = numbers[row]
        view[1, i] = PREFILL if prefilling else DECODE if emitted > 1 else FIRST_DECODE
        view[2, i], view[3, i], view[4, i] = columns[COMPUTED, i], emitted, left
        view[5, i], view[6, i] = lag_tokens[row], class_ids[row]
        view[7, i] = 0 if prefilling or not drafts_fit else max(min(left - 1, allowed[i]), 0)
        shortest = min(shortest, allowed[i])
    return view, shortest


@compiled
def verified_columns(read: IntArray, sampled: IntArray) -> tuple[BoolArray, IntArray]:
    """(n,) which rows are valid, as in `Verified`, and (3, n) drafted, accepted and emitted tokens.

    Args:
        read: (4 · n,) of the requests: each one's index in `sampled`, its tokens in the step, those emitted, its
            drafts; -1 in place of an index or tokens of a request that was not in the step.
        sampled: tokens that the target sampled; empty where a step has none.
    """
    n = len(read) // 4
    found, columns = np.zeros(n, np.bool_), np.zeros((3, n), np.int64)
    for i in range(n):
        index, scheduled, emitted, drafted = read[i], read[n + i], read[2 * n + i], read[3 * n + i]
        if not 0 <= index < len(sampled) or scheduled < 0 or (sampled[index] > 0 and emitted == 0):
            continue
        found[i] = True
        columns[0, i], columns[1, i], columns[2, i] = drafted, min(max(sampled[index] - 1, 0), drafted), emitted
    return found, columns


@compiled
def reported_columns(
    drafted: IntArray, accepted: IntArray, emitted: IntArray, planned: IntArray, padded: bool
) -> tuple[IntArray, IntArray, BoolArray]:
    """(n,) drafted and accepted tokens of an outcome, and whether its drafts are truncated.

    Args:
        drafted, accepted, emitted: of `Verified`.
        planned: (n,) draft lengths without padding.
        padded: whether longer drafts were padded to one length; what lies past the plan is then left out.
    """
    n = len(drafted)
    lengths, kept, truncated = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.bool_)
    for i in range(n):
        lengths[i] = min(drafted[i], planned[i]) if padded else drafted[i]
        kept[i] = min(accepted[i], lengths[i])
        # Where the output ends at an accepted draft token, the tokens after it are unobserved.
        truncated[i] = 0 < emitted[i] <= kept[i]
        kept[i] = min(kept[i], emitted[i])
    return lengths, kept, truncated


@cache
def compile_kernels() -> None:
    """Compile them, or load them from the cache, so that the first step does not wait for it."""
    one, read = np.zeros(1, np.int64), np.zeros(4, np.int64)
    compile_for(batch_columns, read, one, one, one, one)
    compile_for(can_catch_up, one, one, one, one, (0, 0, False))
    compile_for(longest_drafts, one, one, one, EVERY, 0, 0)
    compile_for(view_columns, np.zeros((7, 1), np.int64), *[one] * 7, (0, 0, False), 0, 0, 0, True)
    compile_for(verified_columns, read, one)
    compile_for(reported_columns, one, one, one, one, False)
