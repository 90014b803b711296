"""A step whose drafts are made and not verified yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbospec import StepView
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.scheduler import ScheduledBatch, Scheduler


@dataclass(slots=True)
class PlannedStep:
    """A scheduled batch with its plan's drafts."""

    view: StepView
    proposal: Draft
    """What was drafted, with one row for each row of the view."""
    sources: IntArray | None
    """(n,) `Source` of each row of the view; None where there is no look-up beside the drafter."""
    appended: IntArray | None
    """(n,) tokens that the look-up appended to the draft of each row of the view; None where the plan appends none."""
    batch: ScheduledBatch
    """The n requests to run: those of the view without the aborted ones, then those that arrived since."""
    view_rows: IntArray
    """Row in the view of each request of the batch that is in the view; these come first in the batch."""
    draft: Draft
    """(n rows) the drafts of the batch's requests."""
    final_draws: FloatArray
    """(n,) uniforms that decide about the token after the accepted ones."""
    accept_draws: FloatArray
    """(n, longest draft) uniforms that decide about draft tokens."""
    draft_seconds: float
    seconds: float
    """Spent on the step so far: scheduling, planning and drafting."""

    def update_batch(self, scheduler: Scheduler) -> None:
        """Drop the requests that were aborted since the plan was made, and admit those that arrived since."""
        old = self.batch
        self.view_rows = np.array(
            [row for row, request in enumerate(old.requests) if request.finish_reason is None], np.int64
        )
        self.batch = ScheduledBatch(
            [old.requests[row] for row in self.view_rows], [old.num_tokens[row] for row in self.view_rows]
        )
        scheduler.admit_late(self.batch)
        late = self.batch.requests[len(self.view_rows) :]
        self.draft = self.draft.take(self.view_rows).padded(len(late))
        self.accept_draws = np.pad(self.accept_draws[self.view_rows], ((0, len(late)), (0, 0)))
        drawn = [0.0 if request.params.greedy else request.rng.random() for request in late]
        self.final_draws = np.concatenate([self.final_draws[self.view_rows], drawn])
