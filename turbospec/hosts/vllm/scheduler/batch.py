"""What vLLM scheduled for one step, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np

from turbospec.hosts.vllm.scheduler.kernels import COMPUTED, DRAFTS, MISSING, MOST, OUTPUT, PROMPT, batch_columns
from turbospec.hosts.vllm.scheduler.requests import KnownRequests, VllmRequest
from turbospec.interface import BoolArray, IntArray

READ = attrgetter("num_computed_tokens", "num_tokens", "num_output_placeholders")
READ_COUNT = 3


@dataclass(slots=True)
class ScheduledBatch:
    """One row per scheduled request, in vLLM's order."""

    requests: Sequence[VllmRequest]
    names: Sequence[str]
    rows: IntArray
    """(n,) in `KnownRequests`."""
    scheduled: IntArray
    """(n,) tokens that the step computes, drafts included."""
    columns: IntArray
    """(7, n) of `batch_columns`; the properties are its rows."""
    tokens: int
    """That the step computes."""
    context_tokens: int
    """KV tokens that its target pass attends to."""
    longest_context: int
    prefill_tokens: int
    """Prompt tokens that the step computes, also those that a preempted request computes again."""
    missing_tokens: int
    draft_tokens: int
    sampling: int
    """Requests that the step samples for."""

    @classmethod
    def of(
        cls, requests: Sequence[VllmRequest], num_scheduled: Mapping[str, int], known: KnownRequests
    ) -> ScheduledBatch:
        """
        Args:
            requests: the n scheduled ones, before the step is added to their computed tokens.
            num_scheduled: tokens that the step computes for each of them, in the same order.
            known: registers those that are new.
        """
        size = len(requests)
        read = np.fromiter(chain.from_iterable(map(READ, requests)), np.int64, size * READ_COUNT)
        scheduled = np.fromiter(num_scheduled.values(), np.int64, size)
        rows = known.rows(requests)
        columns, *totals = batch_columns(read, scheduled, rows, known.prompt, known.max_tokens)
        return cls(requests, list(num_scheduled), rows, scheduled, columns, *totals)

    @property
    def size(self) -> int:
        """Number of requests, n."""
        return len(self.rows)

    @property
    def computed(self) -> IntArray:
        """(n,) computed tokens after the step, should all drafts be accepted."""
        return self.columns[COMPUTED]

    @property
    def output(self) -> IntArray:
        """(n,) output tokens, without those of steps in flight."""
        return self.columns[OUTPUT]

    @property
    def prompt(self) -> IntArray:
        """(n,) prompt tokens."""
        return self.columns[PROMPT]

    @property
    def max_tokens(self) -> IntArray:
        """(n,) most output tokens."""
        return self.columns[MOST]

    @property
    def drafts(self) -> IntArray:
        """(n,) drafts that the step verifies."""
        return self.columns[DRAFTS]

    @property
    def missing(self) -> IntArray:
        """(n,) prefill tokens left for later steps, also of requests that resume after a preemption."""
        return self.columns[MISSING]

    @property
    def ahead(self) -> IntArray:
        """(n,) most tokens that are emitted until the step has ended, and are not known yet."""
        return self.computed + 1 - self.prompt - self.output

    @property
    def brings_first_token(self) -> BoolArray:
        """(n,) whether the step ends the request's prefill."""
        return (self.output == 0) & (self.computed >= self.prompt)
