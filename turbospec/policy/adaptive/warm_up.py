"""Compiles the kernels that `adaptive` uses, so that the first step does not wait for them."""

from __future__ import annotations

import numpy as np

from turbospec.interface import LookupView, Phase, StepOutcome, StepView
from turbospec.planning.gain_histogram import BINS
from turbospec.policy.adaptive.confidence_gate import PricedGate
from turbospec.policy.adaptive.draft_trim import PricedTrim, Scratch
from turbospec.policy.adaptive.policy import AdaptivePolicy
from turbospec.policy.adaptive.settings import AdaptiveSettings


def compile_kernels(settings: AdaptiveSettings) -> None:
    """Run one step of a policy with these settings: about a minute on a first run, then cached on disk."""
    policy = AdaptivePolicy(settings)
    ones = np.ones(2, np.int64)
    view = StepView(
        step=0,
        now=0.0,
        request_ids=np.arange(2),
        phase=ones * Phase.DECODE,
        context_tokens=ones * 100,
        emitted_tokens=ones,
        tokens_left=ones * 50,
        drafter_lag_tokens=ones * 2,
        class_ids=ones * 0,
        draft_limits=ones * 4,
        max_draft=4,
        lookup=LookupView(ones, np.ones(2)),
    )
    policy.plan(view)
    policy.observe(
        StepOutcome(
            step=0,
            request_ids=view.request_ids,
            drafted=ones,
            accepted=ones,
            emitted=ones + 1,
            truncated=np.zeros(2, np.bool_),
            proposed=ones,
            draft_rows=np.array([2]),
            tokens_batched=4,
            draft_seconds=1e-3,
            verify_seconds=1e-3,
            step_seconds=3e-3,
        )
    )
    PricedGate(policy.state, ones * 0, view, ones, 2, 1.0).advance(np.arange(2), np.ones(2))
    scratch = Scratch(np.zeros((4, 4, 7)), np.zeros((5, BINS), np.int64), np.zeros((5, BINS)))
    PricedTrim(policy.state, scratch, (ones,) * 9, np.ones(2), ones, ones, 0, 1.0).trim(ones, 4)
