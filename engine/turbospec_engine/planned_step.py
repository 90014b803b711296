"""A step between its plan and its verification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbospec import StepView
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.scheduler import ScheduledBatch, Scheduler


@dataclass(slots=True)
class PlannedStep:
    """A scheduled batch with its drafts, ready to be verified."""

    view: StepView
    proposal: Draft
    """What the drafter made, one row for each row of the view."""
    batch: ScheduledBatch
    """The n requests to run: those of the view, less the aborted, and behind them those that arrived since."""
    view_rows: IntArray
    """Row in the view of each of the first requests of the batch."""
    draft: Draft
    """The drafts of the batch's requests."""
    final_draws: FloatArray
    """(n,) uniforms for the token after the accepted ones."""
    accept_draws: FloatArray
    """(n, longest draft) uniforms that decide on draft tokens."""
    draft_seconds: float
    seconds: float
    """Everything spent on the step so far: scheduling, planning, drafting."""

    def revise(self, scheduler: Scheduler) -> None:
        """Bring a batch that was planned before the last tokens left up to date with aborts and arrivals."""
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
