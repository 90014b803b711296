"""Steps for tests: a view of n decoding requests, and its outcome."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec.interface import Phase, StepOutcome, StepView


def make_view(n: int = 4, *, step: int = 0, max_draft: int = 15, **overrides: Any) -> StepView:
    """n requests (ids 0 to n-1), all decoding at 100 tokens of context, each with a draft limit of `max_draft`."""
    fields: dict[str, Any] = {
        "step": step,
        "now": 0.0,
        "request_ids": np.arange(n),
        "phase": np.full(n, Phase.DECODE, np.int64),
        "context_tokens": np.full(n, 100),
        "emitted_tokens": np.full(n, 10),
        "tokens_left": np.full(n, 100),
        "drafter_lag_tokens": np.zeros(n, np.int64),
        "class_ids": np.zeros(n, np.int64),
        "draft_limits": np.full(n, max_draft),
        "max_draft": max_draft,
    }
    return StepView(**(fields | overrides))


def make_outcome(view: StepView, drafted: Any, accepted: Any, **overrides: Any) -> StepOutcome:
    """A step of 10 ms with this view; `drafted` and `accepted` are one number for all rows, or one per row."""
    drafted = np.broadcast_to(np.asarray(drafted, np.int64), view.size)
    accepted = np.broadcast_to(np.asarray(accepted, np.int64), view.size)
    deepest = int(drafted.max(initial=0))
    passes = min(deepest, 1) if view.parallel_drafter else deepest
    rows = [int(drafted.sum())] if view.parallel_drafter else [int((drafted > depth).sum()) for depth in range(deepest)]
    draft_rows = np.array(rows[:passes], np.int64)
    tokens = view.size + int(drafted.sum()) + view.prefill_tokens
    fields: dict[str, Any] = {
        "step": view.step,
        "request_ids": view.request_ids,
        "drafted": drafted,
        "accepted": accepted,
        "emitted": accepted + 1,
        "truncated": np.zeros(view.size, np.bool_),
        "proposed": drafted,
        "draft_rows": draft_rows,
        "draft_context_tokens": int((view.context_tokens * np.minimum(drafted, passes)).sum()),
        "tokens_batched": tokens,
        "padded_tokens": tokens,
        "prefill_tokens": view.prefill_tokens,
        "context_tokens": int(view.context_tokens.sum()),
        "draft_seconds": 0.002,
        "verify_seconds": 0.007,
        "step_seconds": 0.010,
    }
    return StepOutcome(**(fields | overrides))
