"""The models of one server under `adaptive`, and how they learn from outcomes."""

from __future__ import annotations

import numpy as np

from turbospec.interface import StepOutcome
from turbospec.models.decode_rate import DecodeRate
from turbospec.models.drafter import DrafterModels
from turbospec.models.latency import LatencyModel
from turbospec.planning.prediction_bias import PredictionBias
from turbospec.planning.stopping import PassValueCache
from turbospec.policy.adaptive.attribution import PlanRecord


class ServerModels:
    """The models of one server: step times, the price of time, prediction bias, acceptance.

    Args:
        latency: the initial latency model, fitted to a profile or not.
    """

    def __init__(self, latency: LatencyModel) -> None:
        self.latency = latency
        self.price = DecodeRate()
        self.bias = PredictionBias()
        self.drafter: DrafterModels | None = None
        """None until the first view gives the maximum draft length."""
        self.stopping: PassValueCache | None = None
        """Values of starting a gated draft; None as long as `drafter` is."""
        self._drafted_at = -1
        """The last step whose drafts were learnt from."""

    def start(self, max_draft: int) -> DrafterModels:
        """Make the drafter's models, for drafts of up to `max_draft` tokens, at least 1."""
        self.drafter = DrafterModels(max_draft)
        self.stopping = PassValueCache(self.drafter.calibration)
        return self.drafter

    def learn(self, record: PlanRecord, outcome: StepOutcome) -> None:
        """Take in an outcome; `record` is of the plan that its step ran on."""
        if outcome.reused_plan_steps:
            requests = round(outcome.reused_plan_tokens / outcome.reused_plan_steps)
            self.price.add(requests, outcome.reused_plan_tokens, outcome.reused_plan_seconds, outcome.reused_plan_steps)
        self.latency.learn(outcome, len(record.rows))
        # Requests may end between the plan and the step that verifies its drafts.
        decoded = int(np.count_nonzero(outcome.emitted[record.decoders]))
        self._compare_with_plan(record, outcome, decoded)
        if has_drafts(outcome) and self.drafter is not None:
            idle_steps = max(outcome.step - self._drafted_at - 1, 0)
            self.drafter.learn(record.rows, record.class_ids, outcome, idle_steps)
            self._drafted_at = outcome.step
        # A probe's step is not used for the decode rate, because its drafts were not expected to pay.
        if record.probe is None and decoded > 0:
            seconds = self._decode_seconds(outcome, len(record.rows))
            if seconds > 0.0:
                self.price.add(decoded, int(outcome.emitted.sum()), seconds)

    def _compare_with_plan(self, record: PlanRecord, outcome: StepOutcome, decoded: int) -> None:
        """Update the prediction bias from a plan with predictions.

        Prefill of requests that joined after the plan was made, in either model's pass, is not part of the prediction.
        """
        if record.plan is None:
            return
        unforeseen = len(outcome.draft_rows) > 0 and outcome.catch_up_tokens > record.drafter_lag_tokens
        if record.prefilling == (outcome.prefill_tokens > 0) and not unforeseen:
            decoding = int(np.count_nonzero(record.decoders))
            self.bias.learn(record.plan, decoding, decoded, record.prefilling, outcome)

    def _decode_seconds(self, outcome: StepOutcome, requests: int) -> float:
        """Predicted duration of a step without its prefill tokens; 0 where that is not known.

        It is needed because on a busy server nearly every step has prefill tokens.
        """
        if outcome.prefill_tokens == 0:
            return outcome.step_seconds
        if not self.latency.calibrated:
            return 0.0
        decoded = outcome.tokens_batched - outcome.prefill_tokens
        alone, whole = (
            float(self.latency.verify_curve(decoded + prefill, 0, outcome.context_tokens, requests, prefill)[0])
            for prefill in (0, outcome.prefill_tokens)
        )
        return outcome.draft_seconds + (outcome.step_seconds - outcome.draft_seconds) * alone / whole


def has_drafts(outcome: StepOutcome) -> bool:
    """Whether the step drafted; some engines report drafts without a pass (`StepView.first_pass_every_step`)."""
    return len(outcome.draft_rows) > 0 or bool(outcome.drafted.any())
