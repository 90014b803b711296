"""Records of plans, so that outcomes can be attributed to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbospec.interface import BoolArray, IntArray, StepOutcome, StepPlan, StepView


@dataclass(slots=True)
class ProbeRecord:
    """The predictions of a probe."""

    step_seconds: float
    """Predicted duration of the step."""
    verify_seconds: float
    """Predicted time that the probed tokens add to the target's pass."""


@dataclass(slots=True)
class PlanRecord:
    """A planned step, kept until the models have learnt from its outcome and those of the steps that reuse its plan."""

    step: int
    last_step: int
    """Last step that may reuse the plan."""
    request_ids: IntArray
    rows: IntArray
    """(n,) rows of the requests' state."""
    class_ids: IntArray
    decoders: BoolArray
    """(n,) requests past their prompt."""
    prefilling: bool
    """Whether the step had prefill tokens when it was planned."""
    plan: StepPlan | None = None
    """The plan, where its prediction is to be compared with the outcome; None for probes and exploration."""
    drafter_lag_tokens: int = 0
    """KV lag of the drafting requests, which the plan catches up."""
    price: float = 0.0
    """λ, tokens/s, that the plan was made with."""
    probe: ProbeRecord | None = None

    @classmethod
    def of(cls, view: StepView, rows: IntArray) -> PlanRecord:
        return cls(
            step=view.step,
            last_step=view.step,
            request_ids=view.request_ids,
            rows=rows,
            class_ids=view.class_ids,
            decoders=view.decoding,
            prefilling=view.prefill_tokens > 0,
        )

    def covers(self, outcome: StepOutcome) -> bool:
        """Whether this outcome is of the planned step or of one that reused its plan."""
        if len(outcome.request_ids) != len(self.request_ids):
            return False  # the step was planned again for another batch
        if outcome.step == self.step:
            return True
        return outcome.step <= self.last_step and np.array_equal(outcome.request_ids, self.request_ids)
