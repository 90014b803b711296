"""What vLLM scheduled for one step, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter

import numpy as np

from turbospec.hosts.vllm.scheduler.requests import KnownRequests, VllmRequest
from turbospec.interface import BoolArray, IntArray

READ = attrgetter("num_computed_tokens", "num_tokens", "num_output_placeholders")
READ_COUNT = 3


@dataclass(frozen=True)
class ScheduledBatch:
    """One row per scheduled request, in vLLM's order."""

    requests: Sequence[VllmRequest]
    names: Sequence[str]
    rows: IntArray
    """(n,) in `KnownRequests`."""
    scheduled: IntArray
    """(n,) tokens that the step computes, drafts included."""
    before: IntArray
    """(n,) computed tokens before the step."""
    computed: IntArray
    """(n,) computed tokens after it, should all drafts be accepted."""
    tokens: IntArray
    """(n,) prompt and output tokens, those of steps in flight included."""
    in_flight: BoolArray
    """(n,) whether a step that vLLM has scheduled before this one, and not finished, samples for the request."""
    output: IntArray
    """(n,) output tokens, without those of steps in flight."""
    prompt: IntArray
    """(n,) prompt tokens."""
    max_tokens: IntArray
    """(n,) most output tokens."""

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
        values = np.fromiter(chain.from_iterable(map(READ, requests)), np.int64, size * READ_COUNT)
        before, tokens, placeholders = values.reshape(size, READ_COUNT).T.copy()
        scheduled = np.fromiter(num_scheduled.values(), np.int64, size)
        rows = known.rows(requests)
        prompt = known.prompt[rows]
        return cls(
            requests=requests,
            names=list(num_scheduled),
            rows=rows,
            scheduled=scheduled,
            before=before,
            computed=before + scheduled,
            tokens=tokens + placeholders,
            in_flight=placeholders > 0,
            output=tokens - prompt,
            prompt=prompt,
            max_tokens=known.max_tokens[rows],
        )

    @property
    def size(self) -> int:
        """Number of requests, n."""
        return len(self.rows)

    @cached_property
    def drafts(self) -> IntArray:
        """(n,) drafts that the step verifies."""
        return np.maximum(self.computed - self.tokens, 0)

    @cached_property
    def missing(self) -> IntArray:
        """(n,) prefill tokens left for later steps, also of requests that resume after a preemption."""
        return np.maximum(self.tokens - self.computed, 0)

    @property
    def ahead(self) -> IntArray:
        """(n,) most tokens that are emitted until the step has ended, and are not known yet."""
        return self.computed + 1 - self.prompt - self.output

    @cached_property
    def prefill_tokens(self) -> int:
        """Prompt tokens that the step computes, also those that a preempted request computes again."""
        return int(self.scheduled[self.before < np.maximum(self.tokens - 1, self.prompt)].sum())

    @property
    def brings_first_token(self) -> BoolArray:
        """(n,) whether the step ends the request's prefill."""
        return (self.output == 0) & (self.computed >= self.prompt)
