"""`heuristic`: longer after a fully accepted draft, shorter after any other, as in Hugging Face transformers.

Source: transformers 5, `num_assistant_tokens_schedule="heuristic_transient"`
(generation/candidate_generator.py, `AssistedCandidateGenerator.update_candidate_strategy`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import MAX_DRAFT_LENGTH, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import CEILING, PolicyConfig

INCREASE = 2
DECREASE = 1
MAX_REQUESTS = 8192
"""Most requests whose draft lengths are kept; beyond that those that drafted longest ago are dropped."""


class HeuristicConfig(PolicyConfig):
    """Each request's draft length rises by 2 after a fully accepted draft and falls by 1 after any other."""

    policy: Literal["heuristic"]
    start: int = Field(default=20, ge=1, le=MAX_DRAFT_LENGTH, json_schema_extra=CEILING)
    """Draft length of a request's first step, in tokens."""

    def build(self, profile: Profile | None, seed: int) -> HeuristicPolicy:
        return HeuristicPolicy(self.start)


class HeuristicPolicy:
    """Keeps one draft length per request, because transformers drafts for one request at a time."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._lengths: dict[int, int] = {}
        self._max_draft = start

    def plan(self, view: StepView) -> StepPlan:
        self._max_draft = view.max_draft
        ids: list[int] = view.request_ids.tolist()
        lengths = np.array([self._lengths.get(request_id, self._start) for request_id in ids], np.int64)
        return StepPlan(np.minimum(lengths, view.draft_limits), reason="heuristic: K per request")

    def observe(self, outcome: StepOutcome) -> None:
        shown = (outcome.drafted > 0) & ~outcome.truncated
        complete = outcome.accepted == outcome.drafted
        ids: list[int] = outcome.request_ids[shown].tolist()
        for request_id, accepted_all in zip(ids, complete[shown].tolist(), strict=True):
            # At the end of the dictionary, as the newest.
            self._lengths[request_id] = self._next(self._lengths.pop(request_id, self._start), accepted_all)
        while len(self._lengths) > MAX_REQUESTS:
            del self._lengths[next(iter(self._lengths))]

    def _next(self, length: int, accepted_all: bool) -> int:
        # The engine's maximum, which transformers does not have, also bounds the state. Otherwise a length far above
        # the maximum would need that many rejections before K falls at all.
        length = min(length, self._max_draft)
        length += INCREASE if accepted_all else -DECREASE
        return max(1, min(length, self._max_draft))
