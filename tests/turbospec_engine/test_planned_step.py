"""A planned step whose requests have changed before it is verified."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from turbospec_engine import SamplingParams
from turbospec_engine.draft import Draft
from turbospec_engine.planned_step import PlannedStep
from turbospec_engine.scheduler import ScheduledBatch, Scheduler


def request(temperature: float = 0.0) -> Any:
    params, rng = SamplingParams(temperature=temperature), np.random.default_rng(0)
    return SimpleNamespace(finish_reason=None, params=params, rng=rng)


def test_each_request_keeps_what_was_planned_for_it() -> None:
    """Where one before it is aborted, and others arrive."""
    aborted, kept, last, greedy, sampled = request(), request(1.0), request(), request(), request(1.0)
    lengths = np.array([1, 2, 0])
    draft = Draft(np.array([[10, 0], [20, 21], [0, 0]]), lengths, lengths.copy())
    planned = PlannedStep(
        view=cast(Any, None),
        proposal=draft,
        sources=None,
        appended=None,
        batch=ScheduledBatch([aborted, kept, last], [1, 1, 7]),
        view_rows=np.arange(3),
        draft=draft,
        final_draws=np.array([0.1, 0.2, 0.3]),
        accept_draws=np.array([[0.4, 0.0], [0.5, 0.6], [0.0, 0.0]]),
        draft_seconds=0.0,
        seconds=0.0,
    )
    aborted.finish_reason = "abort"

    def admit_late(batch: ScheduledBatch) -> None:
        batch.add(greedy, 4)
        batch.add(sampled, 5)

    planned.update_batch(cast(Scheduler, SimpleNamespace(admit_late=admit_late)))
    assert planned.batch.requests == [kept, last, greedy, sampled]
    assert planned.batch.num_tokens == [1, 7, 4, 5]
    assert planned.view_rows.tolist() == [1, 2]
    assert planned.draft.drafted.tolist() == planned.draft.proposed.tolist() == [2, 0, 0, 0]
    assert planned.draft.tokens[0].tolist() == [20, 21]
    assert planned.accept_draws.tolist() == [[0.5, 0.6], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert planned.final_draws[:3].tolist() == [0.2, 0.3, 0.0]
    assert planned.final_draws[3] > 0, "it draws its own"
    assert planned.proposal is draft, "what was drafted is told as it was"
