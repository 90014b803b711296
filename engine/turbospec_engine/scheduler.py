"""Which requests run in a step, and with how many tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from turbospec_engine.request import Request
from turbospec_engine.request_blocks import RequestBlocks


@dataclass(slots=True)
class ScheduledBatch:
    """The requests of one step, oldest first, and the tokens that each computes, drafts not counted."""

    requests: list[Request] = field(default_factory=list[Request])
    num_tokens: list[int] = field(default_factory=list[int])

    def add(self, request: Request, num_tokens: int) -> None:
        self.requests.append(request)
        self.num_tokens.append(num_tokens)

    @property
    def total_tokens(self) -> int:
        return sum(self.num_tokens)


class Scheduler:
    """Continuous batching, first come first served, with chunked prefill.

    Decoding requests get one token each; the rest of `max_num_batched_tokens` goes to prefill chunks, oldest request
    first. When a decoding request finds no free KV block, idle drafter KV blocks are given back. Where there are none,
    the latest arrival is preempted: it loses its blocks, goes to the head of the waiting queue, and recomputes its
    tokens when it is scheduled again.
    """

    def __init__(self, blocks: RequestBlocks, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> ScheduledBatch:
        """Choose the next step's requests and allocate KV blocks for their tokens, drafts not counted."""
        self._make_room_for_decodes()
        num_decodes = sum(request.missing == 1 for request in self.running)
        budget = self.max_num_batched_tokens - num_decodes
        batch = ScheduledBatch()
        for request in self.running:
            num_tokens = 1 if request.missing == 1 else min(request.missing, budget)
            if num_tokens:
                batch.add(request, num_tokens)
            if request.missing > 1:
                budget -= num_tokens
        self._admit(batch, budget)
        return batch

    def admit_late(self, batch: ScheduledBatch) -> None:
        """Admit requests that arrived after `batch` was scheduled, within the same token budget."""
        self._admit(batch, self.max_num_batched_tokens - batch.total_tokens)

    def is_prefill_limited(self, batch: ScheduledBatch) -> bool:
        """Whether the token budget left requests waiting for which a batch slot and KV blocks are free."""
        spent = batch.total_tokens >= self.max_num_batched_tokens
        return spent and self._slot_is_free() and self.blocks.fits_new(self.waiting[0])

    def is_kv_limited(self, batch: ScheduledBatch) -> bool:
        """Whether requests wait for KV blocks for which a batch slot is free."""
        return self._slot_is_free() and not self.is_prefill_limited(batch)

    def _slot_is_free(self) -> bool:
        """Whether a batch slot is free for a waiting request."""
        return bool(self.waiting) and len(self.running) < self.max_num_seqs

    def finish(self, request: Request) -> None:
        """Remove a running or waiting request and free its blocks."""
        self.blocks.free(request)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def _admit(self, batch: ScheduledBatch, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self.blocks.admit(request, self.running):
                return
            self.running.append(self.waiting.popleft())
            num_tokens = min(request.missing, budget)
            budget -= num_tokens
            batch.add(request, num_tokens)

    def _make_room_for_decodes(self) -> None:
        index = 0
        while index < len(self.running):
            request = self.running[index]
            if self.blocks.grow(request, request.num_tokens, drafting=bool(request.draft_block_ids)):
                index += 1
            elif self.blocks.give_back_idle(self.running):
                continue
            elif len(self.running) == 1 and request.draft_block_ids:
                self.blocks.give_back(request)
            else:
                self._preempt(self.running[-1])

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.blocks.free(request)
        self.waiting.appendleft(request)
        self.num_preemptions += 1
