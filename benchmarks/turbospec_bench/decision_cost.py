"""Host time of the controller: plan and observe on a large synthetic batch, without any model."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from turbospec.interface import FloatArray, Phase, Policy, StepOutcome, StepPlan, StepView
from turbospec_bench.cold_caches import empty_caches

ACCEPTANCE = (0.3, 0.9)
"""Range of the requests' true acceptance probabilities."""
PASS_SECONDS = 2e-2
TOKEN_SECONDS = 1e-5
"""Of a target pass; a drafter pass takes a quarter. Drafting pays, so that every part of a policy runs."""
CONTEXT_TOKENS = 200
WARM_UP_STEPS = 50


@dataclass(frozen=True, slots=True)
class DecisionCost:
    """Seconds per step, one value for each measured step."""

    plan: FloatArray
    observe: FloatArray

    @property
    def total(self) -> FloatArray:
        return self.plan + self.observe


def measure_decisions(
    controller: Policy, *, requests: int = 256, max_draft: int = 15, steps: int = 500, cold: bool = False
) -> DecisionCost:
    """Time `plan` and `observe` over steps of a server whose requests differ in acceptance and come and go.

    Args:
        controller: whose calls are timed.
        requests: in every step.
        max_draft: longest draft.
        steps: that count.
        cold: whether the processor's caches are emptied before each call.
    """
    traffic = _Traffic(requests, max_draft, np.random.default_rng(0))
    seconds = np.zeros((steps, 2))
    for step in range(-WARM_UP_STEPS, steps):
        view = traffic.view(step + WARM_UP_STEPS)
        if cold:
            empty_caches()
        began = time.perf_counter()
        plan = controller.plan(view)
        planned = time.perf_counter()
        outcome = traffic.outcome(view, plan)
        if cold:
            empty_caches()
        ready = time.perf_counter()
        controller.observe(outcome)
        observed = time.perf_counter()
        if step >= 0:
            seconds[step] = planned - began, observed - ready
    return DecisionCost(seconds[:, 0], seconds[:, 1])


class _Traffic:
    """Decoding requests; in every step a few of them finish and new ones replace them."""

    TURNOVER = 0.01

    def __init__(self, requests: int, max_draft: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._max_draft = max_draft
        self._ids = np.arange(requests)
        self._acceptance = rng.uniform(*ACCEPTANCE, requests)
        self._emitted = np.ones(requests, np.int64)
        self._now = 0.0

    def view(self, step: int) -> StepView:
        count = len(self._ids)
        fresh = self._rng.random(count) < self.TURNOVER
        self._ids = np.where(fresh, self._ids + count, self._ids)
        self._emitted = np.where(fresh, 1, self._emitted)
        self._acceptance = np.where(fresh, self._rng.uniform(*ACCEPTANCE, count), self._acceptance)
        return StepView(
            step=step,
            now=self._now,
            request_ids=self._ids.copy(),
            phase=np.where(fresh, Phase.FIRST_DECODE, Phase.DECODE).astype(np.int64),
            context_tokens=CONTEXT_TOKENS + self._emitted,
            emitted_tokens=self._emitted.copy(),
            tokens_left=np.full(count, CONTEXT_TOKENS),
            drafter_lag_tokens=np.zeros(count, np.int64),
            class_ids=np.zeros(count, np.int64),
            draft_limits=np.full(count, self._max_draft),
            max_draft=self._max_draft,
        )

    def outcome(self, view: StepView, plan: StepPlan) -> StepOutcome:
        count = view.size
        drafted, proposed = np.zeros((2, count), np.int64)
        confidence = np.full((count, self._max_draft), np.nan)
        rows = np.flatnonzero(plan.draft_lengths)
        draft_rows: list[int] = []
        while len(rows):
            seen = self._rng.random(len(rows))
            confidence[rows, proposed[rows]] = seen
            proposed[rows] += 1
            draft_rows.append(len(rows))
            keep, more = np.ones(len(rows), np.bool_), proposed[rows] < plan.draft_lengths[rows]
            if plan.gate is not None:
                keep, wanted = plan.gate.advance(rows, seen)
                more &= keep & wanted
            drafted[rows] += keep
            rows = rows[more]
        runs = self._rng.random((count, self._max_draft)) < self._acceptance[:, None]
        accepted = np.minimum(np.cumprod(runs, axis=1).sum(axis=1), drafted)
        tokens = count + int(drafted.sum())
        draft_seconds = (PASS_SECONDS * len(draft_rows) + TOKEN_SECONDS * sum(draft_rows)) / 4
        verify_seconds = PASS_SECONDS + TOKEN_SECONDS * tokens
        self._now += draft_seconds + verify_seconds
        self._emitted = self._emitted + accepted + 1
        return StepOutcome(
            step=view.step,
            request_ids=view.request_ids,
            drafted=drafted,
            accepted=accepted,
            emitted=accepted + 1,
            truncated=np.zeros(count, np.bool_),
            proposed=proposed,
            confidence=confidence,
            draft_rows=np.array(draft_rows, np.int64),
            tokens_batched=tokens,
            padded_tokens=tokens,
            context_tokens=int(view.context_tokens.sum()),
            draft_seconds=draft_seconds,
            verify_seconds=verify_seconds,
            step_seconds=draft_seconds + verify_seconds,
        )
