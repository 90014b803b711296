"""A host of your own: a toy engine whose draft lengths a controller chooses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec import Phase, Policy, StepOutcome, StepView

MAX_DRAFT = 5


def serve(controller: Policy, prompt_tokens: Sequence[int], output_tokens: int, acceptance: float) -> float:
    """Serve a batch of prompts to the end; returns the mean draft length of the decode steps.

    Drafting and verifying are simulated: a draft token is accepted with probability `acceptance`, and a step takes
    10 ms and 1 ms per drafter pass.
    """
    rng = np.random.default_rng(0)
    ids, context = np.arange(len(prompt_tokens)), np.array(prompt_tokens)
    emitted = np.zeros(len(ids), np.int64)
    step, now, planned = 0, 0.0, list[float]()
    while len(ids):
        prefill, left = emitted == 0, output_tokens - emitted
        view = StepView(
            step=step,
            now=now,
            request_ids=ids,
            phase=np.where(prefill, Phase.PREFILL, np.where(emitted == 1, Phase.FIRST_DECODE, Phase.DECODE)),
            context_tokens=np.where(prefill, 0, context),
            emitted_tokens=emitted,
            tokens_left=left,
            drafter_lag_tokens=np.zeros(len(ids), np.int64),  # this drafter has no KV cache
            class_ids=np.zeros(len(ids), np.int64),
            draft_limits=np.where(prefill, 0, np.minimum(MAX_DRAFT, left - 1)),
            max_draft=MAX_DRAFT,
            prefill_tokens=int(context[prefill].sum()),
        )
        drafted = controller.plan(view).draft_lengths

        # Draft and verify. A real engine measures the seconds.
        matches = np.logical_and.accumulate(rng.random((len(ids), MAX_DRAFT)) < acceptance, axis=1).sum(axis=1)
        accepted = np.minimum(matches, drafted)
        passes, tokens = int(drafted.max()), int(len(ids) + drafted.sum() + context[prefill].sum() - prefill.sum())

        outcome = StepOutcome(
            step=step,
            request_ids=ids,
            drafted=drafted,
            accepted=accepted,
            emitted=accepted + 1,
            truncated=np.zeros(len(ids), np.bool_),  # no stop strings, and no draft exceeds what is left
            proposed=drafted,
            draft_rows=np.array([(drafted > depth).sum() for depth in range(passes)], np.int64),
            draft_context_tokens=int((context * drafted).sum()),
            tokens_batched=tokens,
            padded_tokens=tokens,
            prefill_tokens=view.prefill_tokens,
            context_tokens=int(context.sum()),
            draft_seconds=1e-3 * passes,
            verify_seconds=10e-3,
            step_seconds=10e-3 + 1e-3 * passes,
        )
        controller.observe(outcome)

        planned += drafted[~prefill].tolist()
        step, now = step + 1, now + outcome.step_seconds
        emitted, context = emitted + outcome.emitted, context + outcome.emitted
        going = emitted < output_tokens
        ids, context, emitted = ids[going], context[going], emitted[going]
    return float(np.mean(planned))
