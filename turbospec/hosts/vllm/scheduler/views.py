"""A step of vLLM as a `StepView`."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from turbospec.hosts.vllm.scheduler.batch import ScheduledBatch
from turbospec.hosts.vllm.scheduler.drafter_lag import DrafterLag
from turbospec.hosts.vllm.scheduler.kernels import EVERY, longest_drafts, view_columns
from turbospec.hosts.vllm.scheduler.lookups import Lookups
from turbospec.hosts.vllm.scheduler.requests import KnownRequests
from turbospec.hosts.vllm.shared.step_times import NO_GRAPHS, CapturedGraphs
from turbospec.interface import PREFILL, BoolArray, IntArray, LookupView, StepView

NO_LAG = (0, 0, False)
"""In place of `DrafterLag.catch_up_limits`, where the drafter never lags."""


@dataclass(slots=True, frozen=True)
class EngineLimits:
    """Limits and properties of the engine that do not change while it runs."""

    max_draft: int
    max_model_len: int
    """Of the target or the drafter, whichever is shorter."""
    reserved_length: int
    """Tokens that each request must be away from `max_model_len`, or vLLM drafts for none; 0 for no such rule, as in
    model runner V2."""
    max_batched_tokens: int
    parallel_drafter: bool
    drafter_is_lookup: bool = False
    """Whether drafts are looked up instead of computed by a model, which takes next to no time."""
    heads: bool = False
    """Whether the drafter has no KV cache, as Medusa's heads: it never runs in steps without drafts."""
    kept_tokens: int = 0
    """Tokens whose drafter input the worker keeps for catching up; 0 where the drafter runs in every step."""
    drafter_slots: int = 1
    """Rows that the drafter's first pass needs for each request besides the target's tokens."""
    prefix_caching: bool = False
    late_drafts: bool = False
    """Whether the drafter can run after a step's tokens were sent, as it does if one of them is a first token."""
    tokens_first: bool = False
    """Whether every step sends its tokens before its drafts are made, as model runner V2 does on a GPU where the
    drafter's passes are CUDA graphs."""
    async_scheduling: bool = False
    """Whether a step is scheduled before the one before it has ended."""
    largest_graph: int = 0
    calls_trim: bool = False
    """As in `StepView`, as the one before."""

    @property
    def first_pass_every_step(self) -> bool:
        """Whether the drafter's first pass runs in steps without drafts too."""
        return not (self.kept_tokens or self.heads)

    @property
    def first_tokens_wait(self) -> bool:
        """Whether a first token waits for the drafts of its step."""
        return not (self.late_drafts or self.tokens_first)


@dataclass(slots=True, frozen=True)
class Queue:
    """Waiting requests as a step is scheduled."""

    requests: int = 0
    waiting_seconds: float = 0.0
    """Waiting time of the first; 0 where it was preempted."""
    admitted: int = 0
    """Those for which a batch slot and KV blocks are free; they wait for room in a step."""


class Views:
    """Builds views.

    Args:
        limits: of the engine.
        known: the requests.
        lag: of the drafter; None where the drafter runs in every step.
        lookups: beside the drafter; None where there is no look-up.
    """

    def __init__(
        self, limits: EngineLimits, known: KnownRequests, lag: DrafterLag | None, lookups: Lookups | None
    ) -> None:
        self._limits = limits
        self._known = known
        self._lag = lag
        self._lookups = lookups
        self.graphs = NO_GRAPHS
        """As the worker has reported them."""
        self._full_graphs: dict[int, tuple[int, ...]] = {}

    def learn_graphs(self, graphs: CapturedGraphs) -> None:
        """Take over what a worker has captured."""
        if self._limits.drafter_is_lookup:
            # A look-up may find fewer tokens than asked for, so that no batch is surely uniform.
            graphs = graphs._replace(target=())
        if graphs != self.graphs:
            self.graphs, self._full_graphs = graphs, {}

    def of_step(
        self, step: int, batch: ScheduledBatch, queue: Queue, running: int = 0, drafts: IntArray | int = 0
    ) -> StepView:
        """The batch as it will be when this step's tokens are sampled.

        Args:
            step: the controller's number of the step.
            batch: the n scheduled requests.
            queue: waiting requests.
            running: steps in flight that vLLM does not count itself (`num_output_placeholders`).
            drafts: (n,) that the step verifies and that are not in the batch yet; 0 for none.
        """
        limits, known = self._limits, self._known
        columns, paddable = view_columns(
            batch.columns,
            batch.rows,
            known.numbers,
            known.class_ids,
            known.max_draft,
            known.lag_tokens,
            known.lag_since,
            known.unresolved,
            NO_LAG if self._lag is None else self._lag.catch_up_limits,
            limits.max_draft,
            limits.max_model_len,
            running,
            self.drafts_fit(batch),
        )
        request_ids, phase, context_tokens, emitted_tokens, left, lag_tokens, class_ids, draft_limits = columns
        prefill_tokens = min(batch.missing_tokens, limits.max_batched_tokens)
        return StepView(
            step=step,
            now=time.monotonic(),
            request_ids=request_ids,
            phase=phase,
            context_tokens=context_tokens,
            emitted_tokens=emitted_tokens,
            tokens_left=left,
            drafter_lag_tokens=lag_tokens,
            class_ids=class_ids,
            draft_limits=draft_limits,
            max_draft=limits.max_draft,
            waiting_requests=queue.requests,
            waiting_seconds=queue.waiting_seconds,
            admitted_requests=queue.admitted,
            prefill_tokens=prefill_tokens,
            prefill_limited=queue.admitted > 0,
            draft_before_emit=limits.first_tokens_wait,
            parallel_drafter=limits.parallel_drafter,
            batch_drafter=True,
            first_pass_every_step=limits.first_pass_every_step,
            drafter_always_prefills=self._lag is None or limits.prefix_caching,
            drafter_prefill_tokens=0 if self._lag is None else batch.prefill_tokens,
            graph_lengths=() if prefill_tokens or queue.admitted else self._graph_lengths(batch.size, paddable),
            drafter_graph_lengths=self._drafter_graph_lengths(batch),
            largest_graph=limits.largest_graph,
            calls_trim=limits.calls_trim,
            lookup=self._look_up(batch, phase, left, drafts),
        )

    def _drafter_graph_lengths(self, batch: ScheduledBatch) -> tuple[int, ...]:
        """Those whose passes fit within the maximum length of each request."""
        lengths = self.graphs.drafter
        if not lengths or batch.size > self.graphs.drafter_requests:
            return ()
        room = self._limits.max_model_len - batch.longest_context - 2
        return lengths if room >= lengths[-1] else tuple(length for length in lengths if length <= room)

    def _graph_lengths(self, requests: int, paddable: int) -> tuple[int, ...]:
        """Draft lengths with a full CUDA graph, in a step without prefill; `paddable` is as the method's."""
        graphs = self.full_graphs(requests)
        if not graphs or paddable >= graphs[-1]:
            return graphs
        return tuple(length for length in graphs if length <= paddable)

    def full_graphs(self, requests: int) -> tuple[int, ...]:
        """Draft lengths with a full CUDA graph for a batch of this size."""
        if requests not in self._full_graphs:
            self._full_graphs[requests] = tuple(length for length, most in self.graphs.target if requests <= most)
        return self._full_graphs[requests]

    def drafts_fit(self, batch: ScheduledBatch) -> bool:
        """Whether vLLM drafts in this batch.

        Where one request has no room for the longest draft, model runner V1 drafts zeros for the whole batch.
        """
        limits = self._limits
        return batch.longest_context + limits.reserved_length <= limits.max_model_len

    def draft_limits(self, batch: ScheduledBatch, left: IntArray) -> IntArray:
        """(n,) longest draft of each request.

        Args:
            batch: the n scheduled requests.
            left: (n,) tokens left to emit after the next one.
        """
        return np.maximum(np.minimum(left - 1, self._allowed(batch)), 0)

    def paddable(self, batch: ScheduledBatch) -> int:
        """The length to which all drafts may be padded: past a request's last token, and past no other limit."""
        return int(self._allowed(batch).min(initial=self._limits.max_draft))

    def _look_up(
        self, batch: ScheduledBatch, phase: IntArray, left: IntArray, drafts: IntArray | int
    ) -> LookupView | None:
        """What the look-up finds for the drafts that follow this step; None without one."""
        if self._lookups is None:
            return None
        limits = np.clip(self._longest(batch, batch.computed + drafts, EVERY), 0, np.maximum(left - 1, 0))
        limits[phase == PREFILL] = 0
        if self._lag is not None:
            limits[self._lag.pauses_lookup(batch.rows)] = 0
        # A grammar checks the drafts that the drafter has made for all requests of such a step, not the look-up's.
        if self._limits.async_scheduling and any(request.use_structured_output for request in batch.requests):
            limits[:] = 0
        return self._lookups.view(batch.requests, limits, batch.ahead + drafts)

    def _allowed(self, batch: ScheduledBatch) -> IntArray:
        """(n,) longest draft of the drafter, however few tokens are left to emit; negative where it is too long."""
        can_draft = EVERY if self._lag is None else self._lag.can_draft(batch.rows)
        return self._longest(batch, batch.computed, can_draft)

    def _longest(self, batch: ScheduledBatch, computed: IntArray, can_draft: BoolArray) -> IntArray:
        limits = self._limits
        return longest_drafts(
            batch.rows, self._known.max_draft, computed, can_draft, limits.max_draft, limits.max_model_len
        )
