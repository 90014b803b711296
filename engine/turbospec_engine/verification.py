"""The verify phase of a step: the target's pass, and which draft tokens it accepts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from turbospec import Phase
from turbospec.interface import BoolArray, IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.planned_step import PlannedStep
from turbospec_engine.runner import ModelRunner, block_table
from turbospec_engine.sampler import verify
from turbospec_engine.transfer import on_device


@dataclass(slots=True, frozen=True)
class Verification:
    """The target's verdict on the drafts of a step's n requests, and the work of its pass."""

    completes: BoolArray
    """(n,) whether the pass computed the request's newest token, so that the request emits; else prefill continues."""
    accepted: IntArray
    """(n,) draft tokens accepted."""
    final: IntArray
    """(n,) the target's own token after the accepted ones; undefined where `completes` is False."""
    tokens_batched: int
    """Tokens in the pass."""
    prefill_tokens: int
    """Of these, of requests in prefill."""
    context_tokens: int
    """KV tokens that the pass read, summed over requests."""
    seconds: float


def verify_step(target: ModelRunner, planned: PlannedStep) -> Verification:
    """Run all requests in one ragged pass and verify their drafts. The requests are not changed."""
    began = time.perf_counter()
    requests, draft = planned.batch.requests, planned.draft
    scheduled = np.array(planned.batch.num_tokens)
    computed = np.array([request.computed for request in requests])
    prefilling = np.array([request.phase == Phase.PREFILL for request in requests])
    completes = computed + scheduled == np.array([request.num_tokens for request in requests])
    query_lens = scheduled + draft.drafted

    ragged = RaggedBatch(query_lens, computed + query_lens, block_table([r.block_ids for r in requests]))
    rows = np.flatnonzero(completes)
    # Of each request, the last 1 + drafted logits: after its newest token and after each draft token.
    wanted = draft.drafted[rows] + 1
    logits_at = np.repeat(np.cumsum(query_lens)[rows] - np.cumsum(wanted), wanted) + np.arange(wanted.sum())
    logits = target.forward(on_device(_input_ids(planned), target.device), ragged, logits_at)
    accepted, final = np.zeros((2, len(requests)), np.int64)
    if len(rows):
        accepted[rows], final[rows] = verify(
            logits,
            [requests[row] for row in rows],
            draft.take(rows),
            planned.accept_draws[rows],
            planned.final_draws[rows],
        )
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
    return Verification(
        completes=completes,
        accepted=accepted,
        final=final,
        tokens_batched=int(query_lens.sum()),
        prefill_tokens=int(scheduled[prefilling].sum()),
        context_tokens=int((computed + query_lens).sum()),
        seconds=time.perf_counter() - began,
    )


def _input_ids(planned: PlannedStep) -> IntArray:
    """(tokens,) each request's scheduled tokens and its drafts, end to end."""
    draft, pieces = planned.draft, list[IntArray]()
    for row, (request, count) in enumerate(zip(planned.batch.requests, planned.batch.num_tokens, strict=True)):
        pieces.append(request.tokens[request.computed : request.computed + count])
        pieces.append(draft.tokens[row, : draft.drafted[row]])
    return np.concatenate(pieces)
