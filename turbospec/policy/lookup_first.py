"""`lookup_first`: the look-up's draft where its score reaches a threshold, else a fixed length from the drafter.

Sources: TensorRT-LLM 1.3, `SAEnhancerConfig.threshold` (tensorrt_llm/_torch/speculative/sa_enhancer.py), where the
score is the number of tokens that match and the threshold 4; Arctic Inference 0.3.0
(arctic_inference/vllm/model_runner.py), where the score is the accepted length that suffix decoding expects and the
threshold the drafter's fixed length.

Both run the drafter for every request and discard its draft where the look-up's is taken. Here it does not run for
these requests.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import MAX_COUNT, MAX_DRAFT_LENGTH, Source, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import CEILING, DraftLength, PolicyConfig


class LookupFirstConfig(PolicyConfig):
    """The source of each draft by a fixed threshold on the look-up's score."""

    policy: Literal["lookup_first"]
    min_score: float = Field(default=4.0, ge=0, le=MAX_COUNT, json_schema_extra=CEILING)
    """Least score of a look-up's draft: matching tokens for prompt look-up, expected accepted tokens for suffix
    decoding. 4 is TensorRT-LLM's default; `draft_length`, with suffix decoding, is Arctic Inference's rule."""
    draft_length: DraftLength = 3
    """Draft tokens of the drafter, for the other requests."""
    lookup_length: DraftLength | None = None
    """Longest draft of the look-up; none: all that it found, as in Arctic Inference. In TensorRT-LLM it is
    `draft_length`."""

    def build(self, profile: Profile | None, seed: int) -> LookupFirstPolicy:
        return LookupFirstPolicy(self)


def plan_lookup_first(view: StepView, min_score: float, lookup_length: int, draft_length: int) -> StepPlan:
    """The look-up's draft, of `lookup_length` tokens at most, where its score reaches `min_score`, else `draft_length`
    tokens of the drafter."""
    plan = StepPlan.same_length(view, draft_length, f"lookup_first: K = {draft_length} from the drafter")
    if view.lookup is None:
        return plan
    found = np.minimum(view.lookup.lengths, lookup_length)
    taken = (found > 0) & (view.lookup.scores >= min_score)
    if taken.any():
        plan.draft_lengths = np.where(taken, found, plan.draft_lengths)
        plan.sources = np.where(taken, Source.LOOKUP.value, Source.DRAFTER.value)
        plan.padded_length = 0
        plan.reason += f", {np.count_nonzero(taken)} drafts from the look-up"
    return plan


class LookupFirstPolicy:
    """Drafts from the look-up where its score reaches the threshold. Without a look-up it is `static`."""

    def __init__(self, config: LookupFirstConfig) -> None:
        self._config = config

    def plan(self, view: StepView) -> StepPlan:
        config = self._config
        longest = MAX_DRAFT_LENGTH if config.lookup_length is None else config.lookup_length
        return plan_lookup_first(view, config.min_score, longest, config.draft_length)

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
