"""`batch_table`: the draft length by batch size, from a table in the policy file, as in vLLM.

Source: vLLM 0.32, `num_speculative_tokens_per_batch_size` (vllm/v1/spec_decode/dynamic/utils.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field, field_validator

from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import BatchSize, DraftLength, PolicyConfig, Settings


class TableEntry(Settings):
    """The draft length for a range of batch sizes, both ends included."""

    first: BatchSize
    """Smallest batch size, in requests."""
    last: BatchSize
    """Largest batch size, in requests."""
    draft_length: DraftLength
    """Draft tokens per request."""


class BatchTableConfig(PolicyConfig):
    """The draft length by the number of requests in the step."""

    policy: Literal["batch_table"]
    table: tuple[TableEntry, ...] = Field(min_length=1)
    """Entries in rising order of batch size, from 1. A batch size in a gap or past the end uses the entry before it."""

    @field_validator("table")
    @classmethod
    def _rising_from_one(cls, table: tuple[TableEntry, ...]) -> tuple[TableEntry, ...]:
        if table[0].first != 1:
            raise ValueError(f"the first entry must start at batch size 1, not {table[0].first}")
        for entry in table:
            if entry.last < entry.first:
                raise ValueError(f"an entry goes from {entry.first} down to {entry.last}; swap them")
        for before, after in pairwise(table):
            if after.first <= before.last:
                raise ValueError(f"batch size {after.first} is in two entries, or the entries are not in rising order")
        return table

    def build(self, profile: Profile | None, seed: int) -> BatchTablePolicy:
        return BatchTablePolicy(self.table)


class BatchTablePolicy:
    """Looks the draft length up by the number of requests scheduled in the step.

    At K = 0 vLLM still runs the drafter's first pass, so that its KV cache does not lag. A policy has no say in that:
    the host decides whether the first pass runs.
    """

    def __init__(self, table: Sequence[TableEntry]) -> None:
        self._starts = [entry.first for entry in table]
        self._lengths = [entry.draft_length for entry in table]

    def plan(self, view: StepView) -> StepPlan:
        length = self._lengths[max(bisect_right(self._starts, view.size) - 1, 0)]
        reason = f"batch_table: K = {length} at batch size {view.size}"
        return StepPlan.same_length(view, length, reason)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
