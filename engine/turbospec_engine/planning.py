"""The plan and draft phases of a step: the controller's view of the batch, and the drafts that its plan asks for."""

from __future__ import annotations

import time
from bisect import bisect_left

import numpy as np

from turbospec import LookupView, Phase, Source, StepPlan, StepView, UserError
from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec_engine.config import EngineConfig
from turbospec_engine.draft import Draft
from turbospec_engine.drafter import Drafter
from turbospec_engine.lookup import Found, Lookup
from turbospec_engine.planned_step import PlannedStep
from turbospec_engine.request import Request
from turbospec_engine.scheduler import ScheduledBatch, Scheduler


class StepPlanner:
    """Makes the views of an engine's steps and executes the plans."""

    def __init__(
        self, config: EngineConfig, scheduler: Scheduler, drafter: Drafter | None, lookup: Lookup | None
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._blocks = scheduler.blocks
        self._drafter = drafter
        self._lookup = lookup
        self.max_draft = max(config.max_draft if drafter else 0, config.max_lookup if lookup is not None else 0)
        """Longest draft of any source."""
        self._next_step = 0

    def look_up(self, batch: ScheduledBatch) -> Found | None:
        """What the look-up finds for the decoding requests of a batch; None without one."""
        if self._lookup is None:
            return None
        limits = [
            0 if request.phase == Phase.PREFILL else self._within(request, self._config.max_lookup, drafting=False)
            for request in batch.requests
        ]
        return self._lookup.find(batch.requests, np.array(limits, np.int64))

    def next_view(self, batch: ScheduledBatch, found: Found | None) -> StepView:
        """What the controller sees of the next step."""
        requests, waiting, drafter = batch.requests, self._scheduler.waiting, self._drafter
        oldest = next(
            (request for request in waiting if not request.emitted), None
        )  # a preempted one has its first token
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
            max_draft=self.max_draft,
            waiting_requests=len(waiting),
            waiting_seconds=0.0 if oldest is None else now - oldest.arrival,
            prefill_tokens=int(np.array(batch.num_tokens, np.int64)[phase == Phase.PREFILL].sum()),
            prefill_limited=self._scheduler.is_prefill_limited(batch),
            drafter_kv_share=self._scheduler.blocks.shared_kv_share if self._scheduler.is_kv_limited(batch) else 0.0,
            draft_before_emit=self._config.emit == "after_draft",
            parallel_drafter=drafter.parallel if drafter else False,
            calls_gate=drafter.calls_gate if drafter else False,
            lookup=None if found is None else LookupView(found.lengths, found.scores, appends=True),
        )
        self._next_step += 1
        return view

    def draft(
        self, batch: ScheduledBatch, view: StepView, plan: StepPlan, found: Found | None, *, began: float
    ) -> PlannedStep:
        """Allocate KV blocks for a plan's drafts, and draft.

        Args:
            batch: the scheduled requests.
            view: of the batch.
            plan: made for the view.
            found: what the view says of the look-up.
            began: `time.perf_counter()` when the step was scheduled.

        Raises:
            UserError: the plan is not within the view's limits.
        """
        sources = _checked_sources(plan, view)
        lengths = _checked_lengths(plan, view, sources)
        drafting = np.ones(view.size, np.bool_) if sources is None else sources == Source.DRAFTER
        lengths = self._allocate(batch, view, lengths, drafting)
        longest = int(lengths.max(initial=0))
        # For each request that samples: one uniform for the token after the drafts, two for each draft token.
        draws = np.zeros((len(batch.requests), 2 * longest + 1))
        for row, request in enumerate(batch.requests):
            if not request.params.greedy:
                draws[row, : 2 * lengths[row] + 1] = request.rng.random(2 * lengths[row] + 1)
        draft_began = time.perf_counter()
        draft = Draft.empty(len(batch.requests))
        of_drafter = np.where(drafting, lengths, 0)
        if of_drafter.any():
            assert self._drafter is not None  # draft_limits are 0 without one
            draft = self._drafter.propose(batch.requests, of_drafter, draws[:, 1::2], plan.gate)
        drafted = time.perf_counter()
        copied = np.flatnonzero(lengths - of_drafter)
        if found is not None and len(copied):
            draft.add_copies(copied, found.tokens[copied], lengths[copied])
        if plan.selection is not None and draft.confidence is not None:
            draft.drafted = np.minimum(plan.selection.select(draft.proposed, draft.confidence), draft.drafted)
        accept_draws, appended = draws[:, 2::2], None
        if plan.append_limits is not None:
            # A gate may have ended a draft.
            whole = (of_drafter > 0) & (draft.drafted == of_drafter)
            appended = self._append(batch, draft, np.where(whole, _checked_append_limits(plan, view), 0))
            accept_draws = _with_draws(accept_draws, batch, draft.drafted, appended)
        return PlannedStep(
            view=view,
            proposal=draft,
            sources=sources,
            appended=appended,
            batch=batch,
            view_rows=np.arange(view.size),
            draft=draft,
            final_draws=draws[:, 0],
            accept_draws=accept_draws,
            draft_seconds=drafted - draft_began,
            seconds=time.perf_counter() - began,
        )

    def _append(self, batch: ScheduledBatch, draft: Draft, limits: IntArray) -> IntArray:
        """Append to whole drafts what the look-up finds after them.

        Args:
            batch: the n requests.
            draft: of the drafter; the drafts are extended.
            limits: (n,) most tokens to append; 0 for requests without a whole draft of the drafter.

        Returns:
            (n,) tokens appended.
        """
        assert self._lookup is not None
        limits = np.minimum(limits, self._config.max_lookup)
        for row in np.flatnonzero(limits):
            request, drafted = batch.requests[row], int(draft.drafted[row])
            limits[row] = min(limits[row], max(0, self._within(request, self.max_draft, drafting=False) - drafted))
        drafts = [draft.tokens[row, : draft.drafted[row]].tolist() for row in range(len(limits))]
        found = self._lookup.find(batch.requests, limits, drafts)
        rows = np.flatnonzero(found.lengths)
        appended = found.lengths.copy()
        for row in rows:
            request, drafted = batch.requests[row], int(draft.drafted[row])
            # Another request's draft may have taken the last blocks since.
            total = self._fitting(request, drafted + int(appended[row]), drafting=False)
            appended[row] = max(0, total - drafted)
            self._blocks.grow(request, request.num_tokens + drafted + int(appended[row]), drafting=False)
        draft.add_copies(rows, found.tokens[rows], appended[rows])
        return appended

    def _draft_limit(self, request: Request) -> int:
        if self._drafter is None or request.phase == Phase.PREFILL:
            return 0
        limit = self._config.max_draft
        if self._drafter.max_model_len is not None:
            limit = min(limit, self._drafter.max_model_len - request.num_tokens)
        return self._within(request, limit, drafting=True)

    def _within(self, request: Request, limit: int, *, drafting: bool) -> int:
        """A draft limit, within the tokens left, the request's own cap, and the KV blocks as in `_fitting`."""
        limit = min(limit, request.tokens_left - 1)
        if request.params.max_draft is not None:
            limit = min(limit, request.params.max_draft)
        return self._fitting(request, max(0, limit), drafting=drafting)

    def _allocate(self, batch: ScheduledBatch, view: StepView, lengths: IntArray, drafting: BoolArray) -> IntArray:
        """Allocate KV blocks for drafts, oldest request first, and shorten the drafts that find too few."""
        lengths = lengths.copy()
        self._blocks.observe_plan(view.draft_limits > 0, drafting & (lengths > 0))
        for row in np.flatnonzero(lengths):
            request, of_drafter = batch.requests[row], bool(drafting[row])
            if not self._blocks.grow(request, request.num_tokens + int(lengths[row]), drafting=of_drafter):
                lengths[row] = self._fitting(request, int(lengths[row]), drafting=of_drafter)
                if lengths[row]:
                    self._blocks.grow(request, request.num_tokens + int(lengths[row]), drafting=of_drafter)
            if of_drafter:
                request.drafted_at = request.decode_steps
                self._blocks.drafts_lack_blocks |= not lengths[row] and not request.draft_block_ids
        return lengths

    def _fitting(self, request: Request, limit: int, *, drafting: bool) -> int:
        """Most draft tokens, up to `limit`, that fit in the KV blocks; in the drafter's too where it is `drafting`."""

        def lacks_blocks(length: int) -> bool:
            return not self._blocks.fits(request, request.num_tokens + length, drafting=drafting)

        if not lacks_blocks(limit):
            return limit
        return bisect_left(range(1, limit + 1), True, key=lacks_blocks)


def _checked_sources(plan: StepPlan, view: StepView) -> IntArray | None:
    """(n,) `Source` of each draft; None where there is one source."""
    if view.lookup is None and plan.sources is None:
        return None
    sources = np.zeros(view.size, np.int64) if plan.sources is None else np.asarray(plan.sources, np.int64)
    if view.lookup is None or sources.shape != (view.size,) or not np.isin(sources, list(Source)).all():
        raise UserError(
            f"the controller's sources {sources.tolist()} are not of this step; wrap the policy in "
            "turbospec.controller.Controller"
        )
    return sources


def _checked_lengths(plan: StepPlan, view: StepView, sources: IntArray | None) -> IntArray:
    lengths, limits = np.asarray(plan.draft_lengths, np.int64), view.draft_limits
    if view.lookup is not None and sources is not None:
        limits = np.where(sources == Source.LOOKUP, view.lookup.lengths, limits)
    if lengths.shape != (view.size,) or (lengths < 0).any() or (lengths > limits).any():
        raise UserError(
            f"the controller's draft lengths {lengths.tolist()} are not between 0 and the step's limits "
            f"{limits.tolist()}; wrap the policy in turbospec.controller.Controller"
        )
    return lengths


def _checked_append_limits(plan: StepPlan, view: StepView) -> IntArray:
    limits = np.asarray(plan.append_limits, np.int64)
    if view.lookup is None or limits.shape != (view.size,) or (limits < 0).any():
        raise UserError(
            f"the controller's append limits {limits.tolist()} are not for the step's {view.size} requests, or "
            "there is no look-up beside the drafter; wrap the policy in turbospec.controller.Controller"
        )
    return limits


def _with_draws(draws: FloatArray, batch: ScheduledBatch, drafted: IntArray, appended: IntArray) -> FloatArray:
    """The (n, longest draft) uniforms that decide about draft tokens, with those of appended tokens drawn."""
    draws = np.pad(draws, ((0, 0), (0, max(0, int(drafted.max(initial=0)) - draws.shape[1]))))
    for row in np.flatnonzero(appended):
        if not batch.requests[row].params.greedy:
            draws[row, drafted[row] - appended[row] : drafted[row]] = batch.requests[row].rng.random(appended[row])
    return draws
