"""The target's pass: its time, which drafts it accepts, and what its requests emit."""

from __future__ import annotations

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.drafting import is_prefilling
from turbospec_sim.randomness import uniform
from turbospec_sim.records import SLOT, TOKENS, Records
from turbospec_sim.step_time import padded, pass_seconds
from turbospec_sim.acceptance import acceptance, advance_text


@compiled
def target_seconds(
    times: Records, curve: FloatArray, padding: IntArray, requests: Records, batch: IntArray, size: int
) -> tuple[float, float, int, int, int, int]:
    """A pass over the batch and its drafts.

    Returns:
        Its seconds, and of these what it would not have taken without its prompts, noise not included; its tokens,
        padded, of prompts, and KV tokens read.
    """
    cost = times[0]
    tokens, prefill, context, prefill_context, pairs = 0, 0, 0, 0, 0.0
    for place in range(size):
        request, own = requests[batch[SLOT, place]], batch[TOKENS, place]
        tokens += own + request.drafts
        context += request.computed + own + request.drafts
        if is_prefilling(request):
            prefill += own
            prefill_context += request.computed + own
            pairs += own * (request.computed + 0.5 * own)
    with_padding = padded(tokens, padding)
    seconds = pass_seconds(curve, with_padding) + cost.kv_token * context + cost.attention_pair * pairs
    seconds += cost.sampled_token * (tokens - prefill)
    prefill_seconds = 0.0
    if prefill == tokens:
        prefill_seconds = seconds
    elif prefill > 0:
        without = pass_seconds(curve, padded(tokens - prefill, padding)) + cost.kv_token * (context - prefill_context)
        prefill_seconds = seconds - without - cost.sampled_token * (tokens - prefill)
    return seconds, prefill_seconds, tokens, with_padding, prefill, context


@compiled
def verify(
    engine: Records,
    totals: Records,
    requests: Records,
    classes: Records,
    rates: FloatArray,
    lines: IntArray,
    values: FloatArray,
    batch: IntArray,
    size: int,
) -> None:
    """Accept drafts and note what every request of the batch emits; its record says so until the next step."""
    state, sums = engine[0], totals[0]
    chances = np.zeros(state.max_draft)
    for place in range(size):
        request = requests[batch[SLOT, place]]
        decoding = not is_prefilling(request)
        drafts, accepted, emitted = request.drafts, 0, 0
        known = request.prompt_tokens + request.emitted
        request.computed += batch[TOKENS, place]
        if decoding:
            kind = classes[request.class_id]
            acceptance(request, kind, rates, lines, values, drafts, chances)
            while accepted < drafts and uniform(request.key, request.emitted + accepted) < chances[accepted]:
                accepted += 1
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
                advance_text(request, classes[request.class_id], request.emitted)
        request.step, request.step_tokens = state.step, batch[TOKENS, place] + accepted
        request.step_drafted, request.step_accepted, request.step_emitted = drafts, accepted, emitted
        request.drafts = 0
