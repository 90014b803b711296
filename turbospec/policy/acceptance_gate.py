"""`acceptance_gate`: a fixed draft length until acceptance falls too low, then off for good, as in TensorRT-LLM.

Source: TensorRT-LLM, `acceptance_window` and `acceptance_length_threshold`
(tensorrt_llm/_torch/speculative/speculation_gate.py).
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import numpy as np
from pydantic import Field

from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.models.profile import Profile
from turbospec.policy.config import PolicyConfig


class AcceptanceGateConfig(PolicyConfig):
    """A fixed draft length, and none ever again once the latest finished requests accepted too few drafts."""

    policy: Literal["acceptance_gate"]
    draft_length: int = Field(default=3, ge=0)
    """Tokens to draft for each request while the gate is open."""
    window: int = Field(default=32, ge=1)
    """Finished requests averaged over; the gate cannot close before as many have finished."""
    threshold: float = Field(default=0.6, ge=0)
    """Average number of accepted drafts a step under which the gate closes."""

    def build(self, profile: Profile | None, seed: int) -> AcceptanceGatePolicy:
        return AcceptanceGatePolicy(self)


class AcceptanceGatePolicy:
    """Averages accepted drafts a step over each request, and those averages over the latest finished requests.

    Engines do not report a request's end, so a request counts as finished when it is no longer in the batch; one that
    was only preempted counts again when it has come back and left. Steps that drafted nothing for a request, or were
    cut short by its end, say nothing of acceptance.
    """

    def __init__(self, config: AcceptanceGateConfig) -> None:
        self._config = config
        self._running: dict[int, tuple[int, int]] = {}
        """Steps that drafted, and drafts accepted in them, by request."""
        self._finished: deque[float] = deque(maxlen=config.window)
        self.closed = False

    def plan(self, view: StepView) -> StepPlan:
        if not self.closed:
            self._retire(set(view.request_ids.tolist()))
        if self.closed:
            return StepPlan(np.zeros(view.size, np.int64), reason="acceptance gate closed")
        lengths = np.minimum(self._config.draft_length, view.draft_limits)
        return StepPlan(lengths, reason=f"acceptance gate open: {self._config.draft_length}")

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
        """Move the requests that left the batch into the window, and close the gate where the window says so."""
        for request_id in self._running.keys() - in_batch:
            steps, accepted = self._running.pop(request_id)
            self._finished.append(accepted / steps)
            if len(self._finished) == self._config.window and self._mean() < self._config.threshold:
                self.closed = True

    def _mean(self) -> float:
        return sum(self._finished) / len(self._finished)
