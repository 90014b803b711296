"""`vllm_adaptive_verification`: drafts the whole block for every request and verifies the most promising part of it, as
vLLM does with `enable_adaptive_verification`.

Source: vLLM 0.32, vllm/v1/worker/gpu/spec_decode/adaptive_verification.py, `AdaptiveVerificationManager`.

    S[i,j]  survival of draft token j of request i: the product of the predicted acceptances up to j
    B       verify budget, draft tokens of the whole batch: argmax over B of
            (decoding requests + the B largest S) / (seconds to draft + seconds to verify with B draft tokens)

B is chosen from the predictions for the last draft of each request (1 for a request's first draft). The B tokens that
are verified are then chosen from the predictions for the drafts themselves.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from turbospec.errors import UserError
from turbospec.interface import (
    MAX_DRAFT_LENGTH,
    MAX_REQUESTS,
    FloatArray,
    IntArray,
    StepOutcome,
    StepPlan,
    StepView,
)
from turbospec.models.profile import LatencySample, Profile
from turbospec.policy.adaptive_verification.acceptance_estimator import AcceptanceEstimator
from turbospec.policy.adaptive_verification.cost_curves import CostCurves
from turbospec.policy.config import CEILING, PolicyConfig
from turbospec.runtime.plans_in_flight import PlansInFlight
from turbospec.runtime.slots import RequestSlots

WARMUP_BUDGETS = 5
"""Verify budgets that the warm-up steps cycle through: none, a quarter, half, three quarters and all of the drafts."""
MAX_SAMPLES = 4096
"""Most steps kept for fitting the cost curves online."""
MAX_CONTEXT_TOKENS = 100_000_000
MAX_LOGITS = MAX_REQUESTS * (MAX_DRAFT_LENGTH + 1)
GRAPH_SIZES = "graph_sizes"
"""Entry of a profile's `meta`: sizes of the target's CUDA graphs in tokens, rising; absent where nothing pads."""


class VllmAdaptiveVerificationConfig(PolicyConfig):
    """Always drafts the whole block, and verifies as many of its tokens as pay by costs profiled at the start.

    Needs an engine that reports drafter confidence (the embedded engine, the simulator). Elsewhere, and for drafters
    without confidence such as prompt look-up, whole drafts are verified.
    """

    policy: Literal["vllm_adaptive_verification"]
    profile_context_tokens: int = Field(default=8192, ge=1, le=MAX_CONTEXT_TOKENS, json_schema_extra=CEILING)
    """Context of each request in the steps that the simulator times at the start, as vLLM does
    (`VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN`). A measured profile has its own."""
    max_logits: Annotated[int, Field(ge=1, le=MAX_LOGITS, json_schema_extra=CEILING)] | None = None
    """Most tokens that the sampler verifies in one step. vLLM derives it from the size of the vocabulary."""
    warmup_steps: int = Field(default=64, ge=WARMUP_BUDGETS, le=MAX_SAMPLES, json_schema_extra=CEILING)
    """Without a profile: number of first steps that cycle through verify budgets, to fit the costs. vLLM times steps of
    its own before it serves, which a policy cannot."""

    def build(self, profile: Profile | None, seed: int) -> VllmAdaptiveVerificationPolicy:
        if profile is None:
            return VllmAdaptiveVerificationPolicy(self, None)
        costs = CostCurves.fit(profile.samples, max(profile.meta.get(GRAPH_SIZES, ()), default=0))
        if costs is None:
            raise UserError(
                "vllm_adaptive_verification: drafting takes no time in the profile; make a new one with `turbospec "
                "profile`, or give the scenario's drafter a cost (latency.draft_pass_seconds)"
            )
        return VllmAdaptiveVerificationPolicy(self, costs)


class VllmAdaptiveVerificationPolicy:
    """Chooses the verify budget with the plan, and the verified tokens after drafting.

    Requests in prefill count as tokens of the target's pass, not as requests that emit: a view does not say which
    prompts end in the step. With a profile the costs never change, as in the source; without one they are fitted to the
    first `warmup_steps` steps, and again whenever their number has doubled, up to 4,096.
    """

    def __init__(self, config: VllmAdaptiveVerificationConfig, costs: CostCurves | None) -> None:
        self.costs = costs
        self.estimator = AcceptanceEstimator(0)
        self._config = config
        self._offline = costs is not None
        self._samples: list[LatencySample] = []
        self._next_fit = config.warmup_steps
        self._slots = RequestSlots()
        self._acceptance = np.ones((self._slots.capacity, 0))
        """(slots, K) prediction for the last draft of each request."""
        self._drafts = PlansInFlight[tuple[FloatArray, FloatArray]]()
        """Features and predictions of drafts whose outcomes are not known yet."""

    def plan(self, view: StepView) -> StepPlan:
        slots = self._lookup(view)
        drafts = int(view.draft_limits.sum())
        if not drafts:
            return StepPlan(np.zeros(view.size, np.int64), reason="vllm_adaptive_verification: nothing to draft")
        decoding = int(np.count_nonzero(view.decoding))
        limit = drafts
        if self._config.max_logits is not None:
            limit = min(limit, max(0, self._config.max_logits - view.size))
        if self.costs is None:
            budget = limit * (len(self._samples) % WARMUP_BUDGETS) // (WARMUP_BUDGETS - 1)
            tokens, said = float("nan"), f"warm-up, {budget} of {drafts} draft tokens verified"
        else:
            survival = np.cumprod(self._acceptance[slots], axis=1)
            scores = np.sort(survival[_positions(view.max_draft) < view.draft_limits[:, None]])[::-1][:limit]
            expected = decoding + np.concatenate([[0.0], np.cumsum(scores)])
            others = decoding + view.prefill_tokens
            seconds = self.costs.draft_seconds(_drafter_rows(view))
            seconds = seconds + self.costs.verify_seconds(others + np.arange(limit + 1))
            budget = int(np.argmax(expected / seconds))
            tokens, said = float(expected[budget]), f"{budget} of {drafts} draft tokens verified"
        return StepPlan(
            view.draft_limits.copy(),
            predicted_tokens=tokens,
            reason=f"vllm_adaptive_verification: {said}",
            selection=BudgetSelection(self, view.step, slots, budget),
        )

    def drafted(self, step: int, slots: IntArray, confidence: FloatArray) -> FloatArray:
        """Predict the acceptance of a step's drafts and keep the predictions.

        Args:
            step: number of the step.
            slots: (n,) slots of its requests.
            confidence: (n, longest draft) as in `DraftSelection.select`.

        Returns:
            (n, K) predicted acceptance, NaN where nothing is drafted.
        """
        known = np.full((len(slots), self._acceptance.shape[1]), np.nan)
        known[:, : confidence.shape[1]] = confidence[:, : known.shape[1]]
        features, acceptance = self.estimator.predict(known)
        self._drafts.put(step, (features, acceptance))
        self._acceptance[slots] = np.where(np.isnan(acceptance), self._acceptance[slots], acceptance)
        return acceptance

    def observe(self, outcome: StepOutcome) -> None:
        if not self._offline:
            self._learn_costs(outcome)
        drafts = self._drafts.pop(outcome.step)
        if drafts is not None and drafts[0].shape == (len(outcome.drafted), len(self.estimator.intercepts)):
            self.estimator.observe(*drafts, outcome.drafted, outcome.accepted, outcome.truncated)
        self.estimator.end_step()

    def _lookup(self, view: StepView) -> IntArray:
        """Slots of the view's requests; a new request's first draft is predicted to be accepted."""
        slots, new = self._slots.lookup(view.request_ids)
        if view.max_draft != self._acceptance.shape[1]:
            self.estimator = AcceptanceEstimator(view.max_draft)
            self._acceptance = np.ones((self._slots.capacity, view.max_draft))
        elif len(self._acceptance) < self._slots.capacity:
            more = np.ones((self._slots.capacity - len(self._acceptance), view.max_draft))
            self._acceptance = np.concatenate([self._acceptance, more])
        self._acceptance[new] = 1.0
        return slots

    def _learn_costs(self, outcome: StepOutcome) -> None:
        if len(self._samples) == MAX_SAMPLES or outcome.step_seconds == 0.0:
            return
        self._samples.append(LatencySample.from_outcome(outcome))
        if len(self._samples) >= self._next_fit:
            self.costs = CostCurves.fit(self._samples)
            self._next_fit *= 2


class BudgetSelection:
    """Verifies the draft tokens of highest survival, up to the budget.

    A token's survival is at least that of the tokens after it, and equals are taken in their order, so that the chosen
    tokens are the first ones of each draft, and the confidence at later positions of a request has no part in whether a
    token is verified (non-anticipation).
    """

    def __init__(self, policy: VllmAdaptiveVerificationPolicy, step: int, slots: IntArray, budget: int) -> None:
        self._policy = policy
        self._step = step
        self._slots = slots
        self._budget = budget

    def select(self, proposed: IntArray, confidence: FloatArray) -> IntArray:
        acceptance = self._policy.drafted(self._step, self._slots, confidence)
        if self._budget >= proposed.sum():
            return proposed.copy()
        return admitted(acceptance, proposed, self._budget)


def admitted(acceptance: FloatArray, drafts: IntArray, budget: int) -> IntArray:
    """(n,) draft tokens of each request among the `budget` tokens of highest survival (`_assign_draft_token_budget`).

    Args:
        acceptance: (n, K) predicted acceptance of each draft token, given that those before it were accepted.
        drafts: (n,) draft tokens of each request; together at least `budget`.
        budget: draft tokens to verify, all requests together.
    """
    drafted = _positions(acceptance.shape[1]) < drafts[:, None]
    survival = np.where(drafted, np.cumprod(acceptance, axis=1), -np.inf)
    best = np.argsort(-survival, axis=None, kind="stable")[:budget]
    return np.bincount(best // max(acceptance.shape[1], 1), minlength=len(drafts))


def _drafter_rows(view: StepView) -> int:
    """Rows of the drafter's first pass over whole blocks, as `StepOutcome.draft_rows` counts them."""
    if view.batch_drafter:
        return view.size
    return int(view.draft_limits.sum() if view.parallel_drafter else np.count_nonzero(view.draft_limits))


def _positions(max_draft: int) -> IntArray:
    return np.arange(max_draft)
