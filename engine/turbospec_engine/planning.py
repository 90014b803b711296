"""The plan and draft phases of a step: the controller's view of the batch, and the drafts that its plan asks for."""

from __future__ import annotations

import time

import numpy as np

from turbospec import Phase, StepPlan, StepView, UserError
from turbospec.interface import IntArray
from turbospec_engine.config import EngineConfig
from turbospec_engine.draft import Draft
from turbospec_engine.drafter import Drafter
from turbospec_engine.planned_step import PlannedStep
from turbospec_engine.request import Request
from turbospec_engine.scheduler import ScheduledBatch, Scheduler


class StepPlanner:
    """Makes the views of an engine's steps and executes the plans."""

    def __init__(self, config: EngineConfig, scheduler: Scheduler, drafter: Drafter | None) -> None:
        self._config = config
        self._scheduler = scheduler
        self._allocator = scheduler.allocator
        self._drafter = drafter
        self._next_step = 0

    def view(self, batch: ScheduledBatch) -> StepView:
        """What the controller sees of the next step."""
        requests, waiting, drafter = batch.requests, self._scheduler.waiting, self._drafter
        now = time.monotonic()
        phase = np.array([request.phase for request in requests], np.int64)
        view = StepView(
            step=self._next_step,
            now=now,
            request_ids=np.array([request.row_id for request in requests], np.int64),
            phase=phase,
            context_tokens=np.array([request.computed for request in requests], np.int64),
            emitted_tokens=np.array([request.emitted for request in requests], np.int64),
            tokens_left=np.array([request.tokens_left for request in requests], np.int64),
            drafter_lag_tokens=np.array(
                [drafter.lag_tokens(request) if drafter else 0 for request in requests], np.int64
            ),
            class_ids=np.array([request.class_id for request in requests], np.int64),
            draft_limits=np.array([self._draft_limit(request) for request in requests], np.int64),
            max_draft=self._config.max_draft if drafter else 0,
            waiting_requests=len(waiting),
            waiting_seconds=now - waiting[0].arrival if waiting else 0.0,
            prefill_tokens=int(np.array(batch.num_tokens, np.int64)[phase == Phase.PREFILL].sum()),
            draft_before_emit=self._config.emit == "after_draft",
            parallel_drafter=drafter.parallel if drafter else False,
        )
        self._next_step += 1
        return view

    def draft(self, batch: ScheduledBatch, view: StepView, plan: StepPlan, *, began: float) -> PlannedStep:
        """Allocate KV blocks for a plan's drafts, and draft.

        Args:
            batch: the scheduled requests.
            view: of the batch.
            plan: made for the view.
            began: `time.perf_counter()` when the step was scheduled.

        Raises:
            UserError: the plan is not within the view's limits.
        """
        lengths = self._allocate(batch, _checked_lengths(plan, view))
        longest = int(lengths.max(initial=0))
        # For each request that samples: one uniform for the token after the drafts, two for each draft token.
        draws = np.zeros((len(batch.requests), 2 * longest + 1))
        for row, request in enumerate(batch.requests):
            if not request.params.greedy:
                draws[row, : 2 * lengths[row] + 1] = request.rng.random(2 * lengths[row] + 1)
        draft_began = time.perf_counter()
        draft = Draft.empty(len(batch.requests))
        if longest:
            assert self._drafter is not None  # draft_limits are 0 without one
            draft = self._drafter.propose(batch.requests, lengths, draws[:, 1::2], plan.gate)
            if plan.selection is not None and draft.confidence is not None:
                draft.drafted = np.minimum(plan.selection.select(draft.proposed, draft.confidence), draft.drafted)
        now = time.perf_counter()
        return PlannedStep(
            view=view,
            proposal=draft,
            batch=batch,
            view_rows=np.arange(view.size),
            draft=draft,
            final_draws=draws[:, 0],
            accept_draws=draws[:, 2::2],
            draft_seconds=now - draft_began,
            seconds=now - began,
        )

    def _draft_limit(self, request: Request) -> int:
        if self._drafter is None or request.phase == Phase.PREFILL:
            return 0
        limit = min(self._config.max_draft, request.tokens_left - 1, self._room(request))
        if request.params.max_draft is not None:
            limit = min(limit, request.params.max_draft)
        if self._drafter.max_model_len is not None:
            limit = min(limit, self._drafter.max_model_len - request.num_tokens)
        return max(0, limit)

    def _allocate(self, batch: ScheduledBatch, lengths: IntArray) -> IntArray:
        """Allocate KV blocks for drafts, oldest request first, and shorten the drafts that find too few."""
        lengths = lengths.copy()
        for row in np.flatnonzero(lengths):
            request = batch.requests[row]
            lengths[row] = min(lengths[row], self._room(request))
            self._allocator.grow(request.block_ids, request.num_tokens + int(lengths[row]))
        return lengths

    def _room(self, request: Request) -> int:
        """Draft tokens that fit in the request's own KV blocks and the free ones."""
        blocks = len(request.block_ids) + self._allocator.num_free
        return blocks * self._allocator.block_size - request.num_tokens


def _checked_lengths(plan: StepPlan, view: StepView) -> IntArray:
    lengths = np.asarray(plan.draft_lengths, np.int64)
    if lengths.shape != (view.size,) or (lengths < 0).any() or (lengths > view.draft_limits).any():
        raise UserError(
            f"the controller's draft lengths {lengths.tolist()} are not between 0 and the step's limits "
            f"{view.draft_limits.tolist()}; wrap the policy in turbospec.controller.Controller"
        )
    return lengths
