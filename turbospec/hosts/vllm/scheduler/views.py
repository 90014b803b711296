"""A step of vLLM as a `StepView`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turbospec.hosts.vllm.scheduler.drafter_lag import DrafterLag
from turbospec.hosts.vllm.scheduler.requests import KnownRequest, VllmRequest
from turbospec.interface import IntArray, Phase, StepView


@dataclass(slots=True, frozen=True)
class EngineLimits:
    """Limits and properties of the engine that do not change while it runs."""

    max_draft: int
    max_model_len: int
    """Of the target or the drafter, whichever is shorter."""
    max_batched_tokens: int
    parallel_drafter: bool
    look_up: bool = False
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
    """Whether every step sends its tokens before its drafts are made, as model runner V2 does on a GPU."""

    graphs: tuple[tuple[int, int], ...] = ()
    """Draft lengths with full CUDA graphs, rising from 0, and the most requests that each has graphs for."""

    def full_graphs(self, requests: int) -> tuple[int, ...]:
        """Draft lengths with a full CUDA graph for a batch of this size."""
        return tuple(length for length, most in self.graphs if requests <= most)

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
    """Those for which a batch slot is free; they wait for room in a step."""


class Views:
    """Builds views.

    Args:
        limits: of the engine.
        lag: of the drafter; None where the drafter runs in every step.
    """

    def __init__(self, limits: EngineLimits, lag: DrafterLag | None) -> None:
        self._limits = limits
        self._lag = lag

    def of_step(
        self,
        step: int,
        requests: Sequence[VllmRequest],
        known: Sequence[KnownRequest],
        num_scheduled: Mapping[str, int],
        queue: Queue,
        running: int = 0,
    ) -> tuple[StepView, int]:
        """The batch as it will be when this step's tokens are sampled, and the step's prefill tokens.

        Args:
            step: the controller's number of the step.
            requests: the n scheduled ones.
            known: what is kept of them.
            num_scheduled: tokens that the step computes for each of them.
            queue: waiting requests.
            running: steps in flight that vLLM does not count itself (`num_output_placeholders`).
        """
        limits = self._limits
        read = [
            (
                request.num_computed_tokens,
                num_scheduled[request.request_id],
                request.num_tokens,
                request.num_output_placeholders,
                request.num_output_tokens,
                request.num_prompt_tokens,
                request.max_tokens,
                asked.number,
                asked.class_id,
                asked.lag_tokens,
            )
            for request, asked in zip(requests, known, strict=True)
        ]
        columns = np.array(read, np.int64).T.copy() if read else np.zeros((10, 0), np.int64)
        before, scheduled, tokens, placeholders, output, prompt, max_tokens, numbers, class_ids, lag_tokens = columns
        computed, known_tokens = before + scheduled, tokens + placeholders
        missing = np.maximum(known_tokens - computed, 0)
        # Prefill, of a preempted request too.
        prefill_tokens = int(scheduled[before < np.maximum(known_tokens - 1, prompt)].sum())
        # A step in flight, and this one, each emit at least one token before drafts are made.
        emitted = output + (placeholders > 0) + running
        left = max_tokens - emitted - 1
        prefilling = missing > 0
        phase = np.where(prefilling, Phase.PREFILL, np.where(emitted > 0, Phase.DECODE, Phase.FIRST_DECODE))
        draft_limits = np.where(prefilling, 0, self.draft_limits(known, computed, left))
        # Requests whose drafts are not limited by the tokens left to emit must not be padded beyond their limit.
        limited = draft_limits < np.minimum(limits.max_draft, left - 1)
        paddable = int(draft_limits[limited].min(initial=limits.max_draft))
        if not self.drafts_fit(int(computed.max(initial=0))):
            draft_limits[:] = 0
        prompt_left = int(missing.sum())
        view = StepView(
            step=step,
            now=time.monotonic(),
            request_ids=numbers,
            phase=phase,
            context_tokens=computed,
            emitted_tokens=emitted + 1,
            tokens_left=left,
            drafter_lag_tokens=lag_tokens,
            class_ids=class_ids,
            draft_limits=draft_limits,
            max_draft=limits.max_draft,
            waiting_requests=queue.requests,
            waiting_seconds=queue.waiting_seconds,
            admitted_requests=queue.admitted,
            prefill_tokens=min(prompt_left, limits.max_batched_tokens),
            draft_before_emit=limits.first_tokens_wait,
            parallel_drafter=limits.parallel_drafter,
            batch_drafter=True,
            first_pass_every_step=self._lag is None and not limits.heads,
            drafter_always_prefills=self._lag is None or limits.prefix_caching,
            drafter_prefill_tokens=0 if self._lag is None else prefill_tokens,
        )
        if limits.graphs and not view.prefill_pending:
            lengths = tuple(length for length in limits.full_graphs(view.size) if length <= paddable)
            view = replace(view, graph_lengths=lengths)
        return view, prefill_tokens

    def drafts_fit(self, longest: int) -> bool:
        """Whether vLLM drafts in a batch whose longest request has this many computed tokens.

        Where one request has no room for the longest draft, vLLM drafts zeros for the whole batch.
        """
        return longest + self._limits.max_draft <= self._limits.max_model_len

    def draft_limits(self, known: Sequence[KnownRequest], computed: IntArray, left: IntArray) -> IntArray:
        """(n,) longest draft of each request.

        Args:
            known: the n requests.
            computed: (n,) their computed tokens.
            left: (n,) tokens left to emit after the next one.
        """
        most, lag = self._limits.max_draft, self._lag
        longest = np.minimum(np.minimum(left - 1, self._limits.max_model_len - computed - 2), most)
        allowed = [most if asked.max_draft is None else asked.max_draft for asked in known]
        if lag is not None:
            allowed = [length if lag.can_draft(asked) else 0 for length, asked in zip(allowed, known, strict=True)]
        return np.maximum(np.minimum(longest, np.array(allowed, np.int64)), 0)
