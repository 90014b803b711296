"""The contract between an engine and the controller.

Once a step the engine describes its batch (`StepView`), the controller answers with a draft length for every
request (`StepPlan`), and the engine reports what came of it (`StepOutcome`):

    view  ──▶  controller.plan(view)  ──▶  plan  ──▶  draft, verify, emit  ──▶  controller.observe(outcome)

All three are structs of numpy arrays with one row a request, in the same order. The controller must stay far below
a step's time, so nothing here is an object per request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Phase(IntEnum):
    """Where a request stands when a step is planned."""

    PREFILL = 0
    """Prompt tokens are still missing from the target's KV cache; no draft is possible."""
    FIRST_DECODE = 1
    """The prompt is in the cache and the first token was just emitted; nothing has been drafted yet."""
    DECODE = 2


@dataclass(slots=True, frozen=True)
class StepView:
    """What the engine knows when a step is planned. Arrays have shape (n,), one row for each scheduled request."""

    step: int
    """Counts the engine's steps from 0."""
    now: float
    """Monotonic clock, seconds."""
    request_ids: IntArray
    """Identify a request for its whole life; never reused by an engine."""
    phase: IntArray
    """`Phase` of each request."""
    context_tokens: IntArray
    """Tokens in the target's KV cache."""
    emitted_tokens: IntArray
    """Tokens emitted so far."""
    tokens_left: IntArray
    """Tokens that the request may still emit (its max_tokens less what it emitted)."""
    drafter_lag_tokens: IntArray
    """Tokens that the drafter's KV cache has missed beyond the ones any step feeds it; to be caught up on drafting."""
    class_ids: IntArray
    """Service class, an integer from 0 to 15 given by the engine; 0 where the user named none. The models keep 16."""
    draft_limits: IntArray
    """Longest draft possible for each request now: at most `max_draft`, 0 in prefill, never past tokens_left - 1
    (the verify pass itself emits one) nor the request's own cap nor the room in the cache."""
    max_draft: int
    """The engine's maximum draft length."""
    waiting_requests: int = 0
    """Requests queued and not scheduled in this step."""
    waiting_seconds: float = 0.0
    """How long the oldest of them has waited."""
    admitted_requests: int = 0
    """Of those that wait, the ones that have a place and will be in the next step: their first tokens wait for this
    one."""
    prefill_tokens: int = 0
    """Prompt tokens that this step computes, over all requests in prefill."""
    draft_before_emit: bool = False
    """True where the tokens of a step leave only after the next draft is made (vLLM's order)."""
    parallel_drafter: bool = False
    """True where one pass drafts all positions (P-EAGLE, n-gram), False where each position costs a pass."""
    batch_drafter: bool = False
    """True where each drafter pass runs over the whole batch, up to the longest draft, as vLLM's do."""
    first_pass_every_step: bool = False
    """True where the drafter's first pass runs in every step, drafts or not, so that its cache never lacks anything.
    It is then part of the step, and only further passes are reported as drafting."""
    drafter_always_prefills: bool = False
    """True where the drafter reads every prompt whether or not the request drafts, because other requests may count on
    its part of the prefix cache. Elsewhere that is part of what drafting costs."""
    drafter_prefill_tokens: int = 0
    """Prompt tokens that the first drafter pass computes now if there is one, and later if there is none: those of the
    step, where it runs over the target's whole batch."""

    @property
    def size(self) -> int:
        """Number of scheduled requests."""
        return len(self.request_ids)

    @property
    def prefill_pending(self) -> bool:
        """Whether prompts that are left, or are to come in the next step, wait for this step to end."""
        return self.prefill_tokens > 0 or self.admitted_requests > 0


class DraftGate(Protocol):
    """Ends drafting early, row by row, on what the drafter says while it drafts.

    Called by engines that can, after every sequential draft pass. It is given only the largest probability of each
    row's draft distribution, never the drawn token or its probability: a decision on whether draft token j is
    verified that looked at token j's own value would bias sampling (non-anticipation).
    """

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Judge one more drafted position of some requests.

        Args:
            rows: (r,) row numbers in the plan's view of the requests that were in this draft pass.
            confidence: (r,) largest probability of the distribution each token is drawn from, in [0, 1].

        Returns:
            keep: (r,) whether the token just drafted is to be verified; a row that is not kept is finished.
            more: (r,) whether the request goes on to another draft pass (never where `keep` is False).
        """
        ...

    def afresh(self, limits: IntArray) -> DraftGate:
        """The gate of another step that reuses the plan: the same requests and estimates, nothing drafted yet.

        Args:
            limits: (n,) draft lengths of that step.
        """
        ...


@dataclass(slots=True, frozen=True)
class PlanValidity:
    """For how long a plan may be reused. `turbospec.runtime.plan_reuse` has the rules."""

    steps: int = 1
    """Steps that may run on the plan, its own included, as long as the same requests decode and none is in prefill."""
    idle_steps: int = 1
    """The same for a plan without drafts in an engine that runs such steps without a view and an outcome for each."""
    max_new_share: float = 0.25
    """Newly admitted requests that may join such steps, as a share of the batch."""


@dataclass(slots=True)
class StepPlan:
    """What the controller wants of a step."""

    draft_lengths: IntArray
    """(n,) tokens to draft for each row of the view, 0 to its draft limit. All 0: no drafter pass is run at all."""
    predicted_tokens: float = float("nan")
    """Expected tokens that the step emits; NaN where the policy does not predict."""
    predicted_seconds: float = float("nan")
    """Expected duration of the step in seconds; NaN where the policy does not predict."""
    reason: str = ""
    """Why, in words a log can carry."""
    gate: DraftGate | None = None
    """Ends drafts early where the engine can; an engine that cannot ignores it."""
    probe: bool = False
    """True where some of these drafts are there to learn from, not because they pay."""
    validity: PlanValidity = PlanValidity()
    """For how long the plan may be reused; an engine may ask again sooner."""


@dataclass(slots=True, frozen=True)
class StepOutcome:
    """What came of a planned step. Arrays have one row for each row of the view, in the same order."""

    step: int
    request_ids: IntArray
    drafted: IntArray
    """(n,) draft tokens that were verified (what the drafter proposed, less what a gate dropped)."""
    accepted: IntArray
    """(n,) of these, accepted in a row from the first."""
    emitted: IntArray
    """(n,) tokens emitted to the user."""
    truncated: BoolArray
    """(n,) True where EOS, a stop string or max_tokens ended the acceptance, so that the position after the accepted
    ones shows no failure."""
    proposed: IntArray
    """(n,) draft tokens that the drafter computed, verified or not; at least `drafted`. 0 for a request that was
    aborted after its drafts were made: nothing can be learnt from them."""
    confidence: FloatArray | None = None
    """(n, max proposed or more) largest probability of the draft distribution at each proposed position, NaN past
    `proposed`; None where the drafter has none."""
    draft_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(passes,) requests in each drafter pass; empty where no drafter ran."""
    draft_context_tokens: int = 0
    """KV tokens of the drafting requests, summed over the passes' rows."""
    catch_up_tokens: int = 0
    """Tokens that the first drafter pass computed beyond those every step feeds it: what the drafter had missed and,
    where it runs over the target's whole batch, the prompts in it. Of a pass for its cache alone too, which is not in
    `draft_rows`."""
    tokens_batched: int = 0
    """Tokens in the target's pass: the verify tokens, sum of 1 + drafted, and the prefill chunks."""
    padded_tokens: int = 0
    """What graph padding made of them; equal to tokens_batched where nothing pads."""
    prefill_tokens: int = 0
    context_tokens: int = 0
    """KV tokens that the target's pass attends to, summed over requests."""
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    """The target's pass with sampling; prefill chunks ride in it."""
    step_seconds: float = 0.0
    """The whole step, planning and host work included."""
    reused_plan_steps: int = 0
    """Steps since the last outcome that reused a plan without drafts and have no outcome of their own."""
    reused_plan_tokens: int = 0
    """Tokens that they emitted."""
    reused_plan_seconds: float = 0.0
    """Their duration."""
    waiting_requests: int = 0
    failures: int = 0
    """Requests that this step lost to an error."""


class Policy(Protocol):
    """Chooses draft lengths. What `PolicyConfig.build` returns and what engines drive.

    A policy sees no engine, only views and outcomes. It may raise; `turbospec.controller.Controller`, itself a policy,
    wraps another one, never raises and falls back to K = 0. `plan` and `observe` together should stay below 1 % of a
    step's time.
    """

    def plan(self, view: StepView) -> StepPlan:
        """Choose a step's draft lengths, each from 0 to its row's draft limit.

        A second call for the same step replaces the first plan.
        """
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a finished step. Outcomes may come steps later, and never for a step that the engine dropped."""
        ...
