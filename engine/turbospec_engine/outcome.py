"""From a verified step to the controller's `StepOutcome`."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec import StepOutcome
from turbospec.interface import IntArray
from turbospec_engine.planned_step import PlannedStep
from turbospec_engine.verification import Verification


def step_outcome(
    planned: PlannedStep, verification: Verification, emitted: IntArray, *, seconds: float, waiting_requests: int
) -> StepOutcome:
    """The outcome of a step, with one row for each row of the step's view.

    Requests that arrived after the plan have no row. Requests aborted since have rows of zeros, as if nothing had been
    proposed: a draft that was not verified must not count as one that a gate dropped.

    Args:
        emitted: (n,) tokens that each request of the batch emitted.
        seconds: of the whole step, scheduling, planning and drafting included.
    """
    kept = planned.view_rows

    def per_view_row(values: np.ndarray, fill: Any = 0) -> np.ndarray:
        rows = np.full((planned.view.size, *values.shape[1:]), fill, values.dtype)
        rows[kept] = values[: len(kept)]
        return rows

    draft, proposal = planned.draft, planned.proposal
    return StepOutcome(
        step=planned.view.step,
        request_ids=planned.view.request_ids,
        drafted=per_view_row(draft.drafted),
        accepted=per_view_row(np.minimum(verification.accepted, emitted)),
        emitted=per_view_row(emitted),
        # The output ended at an accepted draft token: the draft tokens after it were not judged.
        truncated=per_view_row(verification.completes & (emitted <= verification.accepted)),
        proposed=per_view_row(draft.proposed),
        confidence=None if draft.confidence is None else per_view_row(draft.confidence, np.nan),
        draft_rows=proposal.draft_rows,
        draft_context_tokens=proposal.context_tokens,
        catch_up_tokens=proposal.catch_up_tokens,
        tokens_batched=verification.tokens_batched,
        padded_tokens=verification.tokens_batched,
        prefill_tokens=verification.prefill_tokens,
        context_tokens=verification.context_tokens,
        draft_seconds=planned.draft_seconds,
        verify_seconds=verification.seconds,
        step_seconds=seconds,
        waiting_requests=waiting_requests,
        sources=planned.sources,
        appended=None if planned.appended is None else per_view_row(planned.appended[kept]),
    )
