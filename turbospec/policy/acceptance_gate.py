"""`acceptance_gate`: a fixed draft length until acceptance falls too low, then K = 0 permanently, as in TensorRT-LLM.

Source: TensorRT-LLM, `acceptance_window` and `acceptance_length_threshold`
(tensorrt_llm/_torch/speculative/speculation_gate.py).
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import MAX_DRAFT_LENGTH, StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import CEILING, DraftLength, PolicyConfig


class AcceptanceGateConfig(PolicyConfig):
    """A fixed draft length; K = 0 from the moment that the latest finished requests accepted too few draft tokens."""

    policy: Literal["acceptance_gate"]
    draft_length: DraftLength = 3
    """Draft tokens per request while the gate is open."""
    window: int = Field(default=32, ge=1, le=100_000, json_schema_extra=CEILING)
    """Number of finished requests in the average. The gate cannot close before this many have finished."""
    threshold: float = Field(default=0.6, ge=0, le=MAX_DRAFT_LENGTH, json_schema_extra=CEILING)
    """The gate closes when the average of accepted draft tokens per step falls below this."""

    def build(self, profile: Profile | None, seed: int) -> AcceptanceGatePolicy:
        return AcceptanceGatePolicy(self)


class AcceptanceGatePolicy:
    """Averages accepted draft tokens per step over each request, then over the latest finished requests.

    Engines do not report a request's end: a request counts as finished when it is no longer in the batch. A preempted
    request therefore counts a second time when it leaves again. Steps that drafted nothing for a request, and
    truncated ones, are not counted.
    """

    def __init__(self, config: AcceptanceGateConfig) -> None:
        self._config = config
        self._running: dict[int, tuple[int, int]] = {}
        """Steps that drafted, and draft tokens accepted in them, by request."""
        self._finished: deque[float] = deque(maxlen=config.window)
        """Accepted draft tokens per step of each finished request, the latest last."""
        self.closed = False

    def plan(self, view: StepView) -> StepPlan:
        if not self.closed:
            self._retire(set(view.request_ids.tolist()))
        if self.closed:
            return StepPlan(np.zeros(view.size, np.int64), reason="acceptance_gate: closed")
        length = self._config.draft_length
        return StepPlan.same_length(view, length, f"acceptance_gate: open, K = {length}")

    def observe(self, outcome: StepOutcome) -> None:
        if self.closed:
            return
        shown = (outcome.drafted > 0) & ~outcome.truncated
        for request_id, count in zip(
            outcome.request_ids[shown].tolist(), outcome.accepted[shown].tolist(), strict=True
        ):
            steps, accepted = self._running.get(request_id, (0, 0))
            self._running[request_id] = (steps + 1, accepted + count)

    def _retire(self, in_batch: set[int]) -> None:
        """Move requests that left the batch into the window, and close the gate if the window's average is too low."""
        for request_id in self._running.keys() - in_batch:
            steps, accepted = self._running.pop(request_id)
            self._finished.append(accepted / steps)
            if len(self._finished) == self._config.window and self._mean() < self._config.threshold:
                self.closed = True

    def _mean(self) -> float:
        return sum(self._finished) / len(self._finished)
