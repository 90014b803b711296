"""Compiles the kernels that `adaptive` uses, so that the first step does not wait for them."""

from __future__ import annotations

import numpy as np

from turbospec.controller import Controller, GuardConfig
from turbospec.interface import Phase, StepOutcome, StepView
from turbospec.models.drafter import MIN_CONFIDENCE_OBSERVATIONS
from turbospec.models.latency import LatencyModel
from turbospec.planning.gate import GatePrices, SurvivalGate
from turbospec.policy.adaptive.policy import AdaptivePolicy
from turbospec.policy.adaptive.settings import AdaptiveSettings


def compile_kernels(settings: AdaptiveSettings) -> None:
    """Run three steps of a controller with these settings: half a minute on a first run, then cached on disk."""
    policy = AdaptivePolicy(settings, LatencyModel())
    controller = Controller(policy, guard=GuardConfig(max_decision_seconds=60.0))
    policy.models.latency.fitted = True
    ones = np.ones(2, np.int64)
    for step in range(3):
        if policy.models.drafter is not None and step == 2:
            policy.models.drafter.calibration.observations = MIN_CONFIDENCE_OBSERVATIONS
        view = StepView(
            step=step,
            now=float(step),
            request_ids=np.arange(2) + step,
            phase=ones * Phase.DECODE,
            context_tokens=ones * 100,
            emitted_tokens=ones,
            tokens_left=ones * 50,
            drafter_lag_tokens=ones * 2,
            class_ids=ones * 0,
            draft_limits=ones * 4,
            max_draft=4,
        )
        controller.plan(view)
        controller.observe(
            StepOutcome(
                step=step,
                request_ids=view.request_ids,
                drafted=ones,
                accepted=ones,
                emitted=ones + 1,
                truncated=np.zeros(2, np.bool_),
                proposed=ones,
                confidence=np.full((2, 1), 0.5),
                draft_rows=np.array([2]),
                tokens_batched=4,
                draft_seconds=1e-3,
                verify_seconds=1e-3,
                step_seconds=3e-3,
            )
        )
    gate = SurvivalGate(np.full(13, 0.5), np.ones(2), np.full((2, 4), 0.5), ones * 4, GatePrices(0.0, 0.0, 0.0))
    gate.advance(np.arange(2), np.full(2, 0.5))
