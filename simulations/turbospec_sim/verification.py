"""The target's pass: how long it takes, which draft tokens it accepts, and what its requests emit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.acceptance import AcceptanceTables, advance_acceptance, draft_acceptance
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.drafting import is_prefilling
from turbospec_sim.limits import MAX_COUNT
from turbospec_sim.randomness import uniform
from turbospec_sim.records import SLOT, TOKENS, Record
from turbospec_sim.repeats import LOOKUP, accepted_of_lookup, advance_repeats
from turbospec_sim.step_time import padded, padded_pass_seconds


class TargetPass(NamedTuple):
    """One pass of the target over the batch and its drafts. Seconds are at the usual pace."""

    seconds: float
    prefill_seconds: float
    """Of these, what the pass would not have taken without its prompt tokens."""
    tokens: int
    padded_tokens: int
    prefill_tokens: int
    context_tokens: int
    """KV tokens read, summed over requests."""
    piecewise: bool
    """As in a `StepOutcome`."""


@compiled
def target_pass(arrays: EngineArrays, size: int) -> TargetPass:
    """The target's pass over a batch of `size` requests."""
    requests, batch = arrays.requests, arrays.batch
    cost, curve, padding = arrays.engine[0].times, arrays.curve, arrays.padding
    tokens, prefill, context, prefill_context, pairs = 0, 0, 0, 0, 0.0
    padded_length, shortest, longest = arrays.engine[0].padded_length, MAX_COUNT, 0
    for row in range(size):
        request, own = requests[batch[SLOT, row]], batch[TOKENS, row]
        prefilling = is_prefilling(request)
        verified = 0 if prefilling else max(request.drafts, padded_length)
        tokens += own + verified
        context += request.computed + own + verified
        if prefilling:
            prefill += own
            prefill_context += request.computed + own
            pairs += own * (request.computed + 0.5 * own)
        else:
            shortest, longest = min(shortest, verified), max(longest, verified)
    seconds = padded_pass_seconds(cost, curve, padding, tokens)
    seconds += cost.kv_token * context + cost.attention_pair * pairs
    seconds += cost.sampled_token * (tokens - prefill)
    selected = arrays.engine[0].selection > 0
    if selected:
        seconds += cost.selection
    piecewise = False
    if len(arrays.graph_lengths):
        # vLLM's graphs for adaptive verification replay any mix of lengths.
        any_mix = selected and (len(padding) == 0 or tokens <= padding[-1])
        uniform = shortest == longest and _has_graph(arrays.graph_lengths, padding, longest, tokens)
        if prefill > 0 or not (any_mix or uniform):
            seconds += cost.piecewise + cost.piecewise_request * size
            piecewise = prefill == 0
    if prefill > 0:
        seconds += cost.prompt
    prefill_seconds = 0.0
    if prefill == tokens:
        prefill_seconds = seconds
    elif prefill > 0:
        without = padded_pass_seconds(cost, curve, padding, tokens - prefill)
        without += cost.kv_token * (context - prefill_context)
        prefill_seconds = seconds - without - cost.sampled_token * (tokens - prefill)
        if selected:
            prefill_seconds -= cost.selection
    return TargetPass(seconds, prefill_seconds, tokens, padded(tokens, padding), prefill, context, piecewise)


@compiled
def _has_graph(lengths: IntArray, sizes: IntArray, length: int, tokens: int) -> bool:
    """Whether a batch of `tokens` tokens, in which every request verifies `length` drafts, has a full CUDA graph."""
    if len(sizes) and tokens > sizes[-1]:
        return False
    return bool(np.any(lengths == length))


@compiled
def accepted_of_drafter(arrays: EngineArrays, request: Record, drafts: int, chances: FloatArray) -> int:
    """Accepted tokens of a draft that the drafter made; `chances` is (longest draft,) scratch space."""
    tables = AcceptanceTables(arrays.classes, arrays.rates, arrays.lines, arrays.values)
    draft_acceptance(arrays.engine, request, tables, drafts, chances)
    accepted = 0
    while accepted < drafts and uniform(request.key, request.emitted + accepted) < chances[accepted]:
        accepted += 1
    return accepted


@compiled
def verify(arrays: EngineArrays, size: int) -> None:
    """Accept drafts and determine what each request of the batch emits; the requests' `step_…` fields keep it."""
    requests, batch, classes = arrays.requests, arrays.batch, arrays.classes
    state, sums = arrays.engine[0], arrays.totals[0]
    chances = np.zeros(state.max_draft)
    for row in range(size):
        request, own = requests[batch[SLOT, row]], batch[TOKENS, row]
        decoding = not is_prefilling(request)
        kind, drafts, accepted, emitted = classes[request.class_id], request.drafts, 0, 0
        appended = request.appended
        known = request.prompt_tokens + request.emitted
        request.computed += own
        if decoding:
            if request.source == LOOKUP:
                accepted = accepted_of_lookup(request, kind, 0, drafts)
            else:
                of_drafter = drafts - appended
                accepted = accepted_of_drafter(arrays, request, of_drafter, chances)
                if appended > 0 and accepted == of_drafter:
                    accepted += accepted_of_lookup(request, kind, of_drafter, appended)
            sums.decode_rows += 1
            sums.drafts += drafts > 0
            sums.drafted += drafts
            sums.accepted += accepted
            request.decode_steps += 1
            request.computed += accepted
            request.draft_computed = min(request.draft_computed, known + accepted)
        if request.computed >= known:
            emitted = min(accepted + 1, request.output_tokens - request.emitted)
            request.emitted += emitted
            if decoding:
                advance_acceptance(request, kind, request.emitted)
            advance_repeats(request, kind, request.emitted)
        request.step, request.step_tokens = state.step, own + accepted
        request.step_drafted, request.step_accepted, request.step_emitted = drafts, accepted, emitted
        request.step_appended = appended
        request.drafts = request.appended = 0
