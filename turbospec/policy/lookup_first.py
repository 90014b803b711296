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

from turbospec.interface import MAX_COUNT, Source, StepOutcome, StepPlan, StepView
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


class LookupFirstPolicy:
    """Drafts from the look-up where its score reaches the threshold. Without a look-up it is `static`."""

    def __init__(self, config: LookupFirstConfig) -> None:
        self._config = config

    def plan(self, view: StepView) -> StepPlan:
        length = self._config.draft_length
        plan = StepPlan.same_length(view, length, f"lookup_first: K = {length} from the drafter")
        if view.lookup is None:
            return plan
        copied = (view.lookup.lengths > 0) & (view.lookup.scores >= self._config.min_score)
        if copied.any():
            lengths = view.lookup.lengths
            if self._config.lookup_length is not None:
                lengths = np.minimum(lengths, self._config.lookup_length)
            plan.draft_lengths = np.where(copied, lengths, plan.draft_lengths)
            plan.sources = np.where(copied, Source.LOOKUP, Source.DRAFTER)
            plan.padded_length = 0
            plan.reason += f", {np.count_nonzero(copied)} drafts from the look-up"
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Nothing to learn."""
