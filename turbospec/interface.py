"""The contract between an engine and the controller.

Once per step the engine describes its batch (`StepView`), the controller returns a draft length for every request
(`StepPlan`), and the engine reports the measured result (`StepOutcome`):

    view  ──▶  controller.plan(view)  ──▶  plan  ──▶  draft, verify, emit  ──▶  controller.observe(outcome)

All three are structs of numpy arrays with one row per request, in the same order. There is no object per request,
because planning and learning together should take less than 1 % of a step's time.

The controller checks what it is given. A view that breaks the contract gets a plan without drafts, and an outcome that
breaks it is dropped; the policy sees neither. Arrays have the types below; others that hold the same values (int32,
float32, views of larger arrays) are copied, which takes longer.
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

MAX_DRAFT_LENGTH = 128
"""Longest draft, in tokens, that a view or the settings of a policy may name."""
MAX_REQUESTS = 65_536
"""Most requests in a step."""
MAX_COUNT = 2**40 - 1
"""Largest number of tokens, requests or steps in one field of a view or an outcome."""
MAX_STEP_SECONDS = 3600.0
"""Longest duration of one step. A longer one was not spent computing: the machine slept, or the clock is wrong."""
MIN_STEP_SECONDS = 1e-9
"""Shortest duration of a step that was measured."""
MAX_VALID_STEPS = 1000
"""Most steps that may run on one plan."""


class Phase(IntEnum):
    """The phase of a request when a step is planned."""

    PREFILL = 0
    """Part of the prompt is not in the target's KV cache yet; the request cannot draft."""
    FIRST_DECODE = 1
    """The prompt is in the cache and the first token has just been emitted; nothing has been drafted yet."""
    DECODE = 2


class Source(IntEnum):
    """What drafts for a request in a step."""

    DRAFTER = 0
    """The engine's drafter: a model or a head with passes of its own; the only source of most engines."""
    LOOKUP = 1
    """A look-up of what followed the request's last tokens in earlier text. Its drafts need no pass."""


PREFILL = Phase.PREFILL.value
"""To compare arrays with: numpy takes four times as long with a member of an enumeration."""


@dataclass(slots=True, frozen=True)
class LookupView:
    """What an engine's look-up found before the step is planned. Arrays have shape (n,), in the order of the view."""

    lengths: IntArray
    """Tokens that it found for each request, 0 to `StepView.max_draft`, within the request's own cap, its tokens left
    and the free KV blocks; the drafter's limits do not apply. 0 in prefill."""
    scores: FloatArray
    """How good the match is, 0 or more: tokens that match, or the accepted length that the look-up expects. Only its
    order of magnitude is used, and always of the same look-up."""
    appends: bool = False
    """Whether the engine can append what the look-up finds after a draft of the drafter (`StepPlan.append_limits`)."""


@dataclass(slots=True, frozen=True)
class StepView:
    """What the engine knows when a step is planned. Arrays have shape (n,), one row per scheduled request."""

    step: int
    """Number of the engine's step, counted from 0."""
    now: float
    """Monotonic clock, seconds; up to `MAX_COUNT`."""
    request_ids: IntArray
    """Identify a request for its whole life; an engine never reuses one. All differ."""
    phase: IntArray
    """`Phase` of each request."""
    context_tokens: IntArray
    """Tokens in the target's KV cache."""
    emitted_tokens: IntArray
    """Tokens emitted so far."""
    tokens_left: IntArray
    """Tokens that the request may still emit: its max_tokens minus the tokens emitted."""
    drafter_lag_tokens: IntArray
    """Drafter KV lag: tokens missing from the drafter's KV cache, not counting those that every drafter pass computes
    anyway. The drafter must catch them up before the request can draft."""
    class_ids: IntArray
    """Service class, a number chosen by the engine; 0 by default. The models keep 16 classes apart, and take other
    numbers modulo 16."""
    draft_limits: IntArray
    """Longest draft possible for each request now: at most `max_draft`, 0 in prefill, at most tokens_left - 1 (the
    verify pass itself emits one token), and within the request's own cap and the free KV blocks. Only the first two are
    checked."""
    max_draft: int
    """The engine's maximum draft length K, up to `MAX_DRAFT_LENGTH`."""
    waiting_requests: int = 0
    """Requests queued and not scheduled in this step."""
    waiting_seconds: float = 0.0
    """Queueing time of the oldest queued request."""
    admitted_requests: int = 0
    """Queued requests for which a batch slot and KV blocks are free: they wait for room in a step's token budget, and
    this step delays their first tokens. Drafts shorten the wait of the others. Engines that draft at the beginning of a
    step leave it at 0 (docs/notes/2026-11-28-kv-bound.md)."""
    prefill_tokens: int = 0
    """Prompt tokens that this step computes, over all requests in prefill."""
    prefill_limited: bool = False
    """True where the token budget of the step that was scheduled last left queued requests waiting for which a batch
    slot and KV blocks are free. If so in most steps, prefill limits the throughput, and drafts hardly raise it."""
    drafter_kv_share: float = 0.0
    """Memory of a token in the drafter's KV cache as a share of the target's, up to 1, where queued requests lack only
    KV blocks, and would get the drafter's if it did not draft. 0 in other steps, and in engines that reserve that
    memory."""
    draft_before_emit: bool = False
    """True where a step's tokens are emitted only after the next draft is made (vLLM's order)."""
    parallel_drafter: bool = False
    """True where one pass drafts all positions (P-EAGLE, n-gram), False where each position needs a pass."""
    batch_drafter: bool = False
    """True where every drafter pass runs over the whole batch, up to the longest draft, as in vLLM. The pass of a
    parallel drafter then takes as long for any draft."""
    first_pass_every_step: bool = False
    """True where the drafter's first pass runs in every step, with or without drafts, so that the KV lag is always 0.
    That pass is then part of the step, and only further passes are reported as drafting: none of a parallel drafter."""
    drafter_always_prefills: bool = False
    """True where the drafter prefills every prompt, whether or not the request drafts, because other requests may
    reuse its part of the prefix cache. Elsewhere the drafter's prefill is a cost of drafting."""
    drafter_prefill_tokens: int = 0
    """Prompt tokens that the first drafter pass computes, if a pass runs in this step; otherwise a later pass computes
    them. Non-zero where that pass runs over the target's whole batch."""
    calls_gate: bool = False
    """True where the engine calls `StepPlan.gate` after every drafter pass."""
    calls_trim: bool = False
    """True where the engine calls `StepPlan.trim` when it schedules the step that verifies the drafts."""
    graph_lengths: tuple[int, ...] = ()
    """Draft lengths, 0 included, with a full CUDA graph: it is replayed if every request verifies exactly that many
    draft tokens. Any other mix of lengths runs in dearer piecewise graphs. Empty where the mix makes no difference, as
    in steps with prefill and in engines without graphs."""
    drafter_graph_lengths: tuple[int, ...] = ()
    """Draft lengths for which the drafter's passes after the first replay one CUDA graph. Passes for other lengths are
    launched one by one, which a plan can avoid (`StepPlan.passes`). 0 and 1, which need no such graph, are always among
    them. Empty for a drafter without such graphs."""
    largest_graph: int = 0
    """Most tokens of a target's pass that replays CUDA graphs, full or piecewise. The kernels of a larger pass are
    launched one by one, which may take longer than computing. 0 where no size makes such a difference."""
    lookup: LookupView | None = None
    """What the look-up found; None in engines without a look-up beside the drafter. An engine whose only source is a
    look-up describes it as a parallel drafter, in the fields above."""

    @property
    def size(self) -> int:
        """Number of scheduled requests, n."""
        return len(self.request_ids)

    @property
    def decoding(self) -> BoolArray:
        """(n,) whether each request is past its prompt."""
        return self.phase != PREFILL

    @property
    def prefill_pending(self) -> bool:
        """Whether requests without a first token wait for this step: in prefill now, or admitted to the next step."""
        return self.prefill_tokens > 0 or self.admitted_requests > 0


class DraftGate(Protocol):
    """Ends drafts early, row by row, on the drafter's confidence.

    Engines that can do so (`StepView.calls_gate`) call it once after every drafter pass, with all of its rows. A row
    that does not go on is in no later pass. The gate sees only the largest probability of each row's draft
    distribution, never the sampled token or its probability: whether draft token j is verified must not depend on the
    value of token j itself, or sampling would be biased (non-anticipation).
    """

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        """Decide on the position just drafted.

        Args:
            rows: (r,) row numbers, in the plan's view, of the requests in this drafter pass.
            confidence: (r,) largest probability of the distribution that each token is sampled from, in [0, 1].

        Returns:
            keep: (r,) whether to verify the token just drafted; a row that is not kept drafts no further.
            more: (r,) whether the request joins another drafter pass (never where `keep` is False).
        """
        ...


class DraftSelection(Protocol):
    """Chooses, once all drafts of a step are made, how many tokens of each draft are verified; the rest is discarded.

    Engines that report the drafter's confidence call it once per step, after the last drafter pass. Like a gate, it
    sees only the largest probability of each draft distribution, never a sampled token or its probability. It sees all
    positions at once; non-anticipation therefore is the author's duty: whether token j of a request is verified must
    not depend on the confidence at its later positions, which depends on the value of token j.
    """

    def select(self, proposed: IntArray, confidence: FloatArray) -> IntArray:
        """Decide on all drafts of the step. Arrays have one row per row of the plan's view.

        Args:
            proposed: (n,) draft tokens that the drafter computed.
            confidence: (n, longest draft) largest probability of the distribution that each token is drawn from, in
                [0, 1]; NaN past `proposed`.

        Returns:
            (n,) draft tokens to verify: the first ones of each draft, 0 to `proposed`.
        """
        ...


class DraftTrim(Protocol):
    """Shortens drafts once the prompts that are computed beside them are known.

    An engine that drafts at the end of a step plans before it knows which prompts join the step that verifies. Engines
    that can do so (`StepView.calls_trim`) call it when that step is scheduled, if it computes more prompt tokens than
    the view said. It sees the lengths of the drafts, which depend on no draft token: a plan with a trim has no gate and
    no selection, and the engine leaves alone a draft that was cut for its tokens, as by a grammar. Sampling therefore
    stays unbiased.
    """

    def trim(self, drafts: IntArray, tokens_batched: int) -> IntArray:
        """Decide how much of each draft is verified; the rest is discarded.

        Args:
            drafts: (n,) draft tokens of each row of the plan's view that the step is to verify, with padding; 0 for a
                request that is not in the step.
            tokens_batched: tokens of the target's pass, prompts and these drafts included.

        Returns:
            (n,) draft tokens to verify: the first ones of each draft, 0 to `drafts`.
        """
        ...


@dataclass(slots=True)
class StepPlan:
    """The controller's decision for one step."""

    draft_lengths: IntArray
    """(n,) tokens to draft for each row of the view, 0 to its draft limit; with a gate, at most so many. Appended
    tokens (`append_limits`) come on top. If none are of the drafter, no drafter pass runs."""
    predicted_tokens: float = float("nan")
    """Expected tokens that requests past their prompt emit, 0 or more; NaN where the policy does not predict."""
    predicted_seconds: float = float("nan")
    """Expected duration of the step, 0 or more; NaN where the policy does not predict."""
    reason: str = ""
    """Why this plan was chosen, as one line for logs and traces."""
    gate: DraftGate | None = None
    """Ends drafts early; ignored by engines that cannot. A plan with a gate is never reused."""
    padded_length: int = 0
    """One of the view's `graph_lengths`, to which the engine pads the draft of every request, so that the step replays
    a full CUDA graph; not below any draft length. 0 for no padding;
    ignored if nothing is drafted. Padding is verified, but nothing is learnt from it."""
    probe: bool = False
    """True for an experiment: this plan, with or without drafts, runs in place of the best one, to measure."""
    selection: DraftSelection | None = None
    """Chooses what is verified, after all drafts are made. Engines that cannot and drafters that report no confidence
    ignore it and verify whole drafts. `StepOutcome.drafted` counts what is verified. A plan with a selection is never
    reused."""
    valid_steps: int = 1
    """Steps that may run on the plan, its own included, as long as the batch stays alike: 1 to `MAX_VALID_STEPS`. The
    rules are in `turbospec.runtime.plan_reuse`; an engine may call `plan` again sooner."""
    sources: IntArray | None = None
    """(n,) `Source` of each draft; None: the drafter makes all of them. A draft of the look-up is bounded by
    `LookupView.lengths`, not by the draft limit."""
    append_limits: IntArray | None = None
    """(n,) most tokens that the look-up appends to each draft of the drafter, so that both together are at most
    `max_draft`; None: it appends none. Once the drafter is done, the engine searches for what followed the request's
    last tokens and its draft. It appends only to drafts that no gate or selection ended, fewer tokens where it finds
    fewer or its own limits leave no room. Only where `LookupView.appends`, and not in a plan with a `padded_length`."""
    passes: int = 0
    """One of the view's `drafter_graph_lengths`, not below any draft length: the drafter runs so many passes, and what
    it drafts beyond a draft length is discarded. 0: as many passes as the longest draft has tokens."""
    trim: DraftTrim | None = None
    """Shortens drafts when the step that verifies them is scheduled; ignored by engines that cannot. Not in a plan with
    a gate or a selection. A plan that drafts is never reused with a trim."""

    @classmethod
    def same_length(cls, view: StepView, length: int, reason: str) -> StepPlan:
        """Every request drafts `length` tokens, within its draft limit; padded where that length has a full graph."""
        length = min(length, view.max_draft)
        padded = length if length in view.graph_lengths else 0
        return cls(np.minimum(length, view.draft_limits), reason=reason, padded_length=padded)


@dataclass(slots=True, frozen=True)
class StepOutcome:
    """The measured result of a planned step. Arrays have one row per row of the view, in the same order."""

    step: int
    """Of the view."""
    request_ids: IntArray
    """Of the view."""
    drafted: IntArray
    """(n,) draft tokens that were verified: those proposed minus those dropped by a gate, with appended ones. Without
    padding. Where a grammar has ruled out the rest of a draft, its first token counts as verified and rejected."""
    accepted: IntArray
    """(n,) accepted draft tokens: the longest accepted prefix of the verified ones."""
    emitted: IntArray
    """(n,) tokens emitted to the user; at most `MAX_DRAFT_LENGTH` + 1."""
    truncated: BoolArray
    """(n,) True where EOS, a stop string or max_tokens ended the acceptance. The position after the accepted ones is
    then unobserved, not rejected."""
    proposed: IntArray
    """(n,) draft tokens that were made, verified or not, without those that a trim left out: at least `drafted`, at
    most the view's `max_draft`. 0 for a request that was aborted after its drafts were made, so that nothing is learnt
    from it."""
    confidence: FloatArray | None = None
    """(n, max proposed or more) largest probability of the draft distribution at each proposed position, NaN past
    `proposed`; None where the drafter reports none."""
    draft_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(passes,) requests in each drafter pass, or draft tokens in the only pass of a parallel drafter that is no batch
    drafter. Empty where no drafter ran."""
    draft_context_tokens: int = 0
    """KV tokens read by the drafter, summed over all its passes and the requests in each."""
    catch_up_tokens: int = 0
    """Tokens that the first drafter pass computed in addition to those of every pass: the drafter KV lag and, where the
    pass runs over the target's whole batch, the prompts in it. Includes a pass that only updates the drafter's KV
    cache, which is not counted in `draft_rows`."""
    tokens_batched: int = 0
    """Tokens in the target's pass: Σ (1 + drafted) over decoding requests, with `StepPlan.padded_length` in place of
    `drafted` where a plan has one, plus prefill chunks."""
    padded_tokens: int = 0
    """`tokens_batched` after CUDA-graph padding; equal to it where nothing pads."""
    piecewise: bool = False
    """Whether the target's pass ran without a full CUDA graph because its requests verified unequal numbers of draft
    tokens, or a number that has none. False for steps with prefill, and where the view named no `graph_lengths`."""
    prefill_tokens: int = 0
    """Prompt tokens in the target's pass."""
    context_tokens: int = 0
    """KV tokens that the target's pass attends to, summed over requests."""
    draft_seconds: float = 0.0
    """Drafter passes, sampling included; 0 too where the engine does not measure them."""
    verify_seconds: float = 0.0
    """The target's pass, sampling and prefill chunks included; the drafter's passes too where they are not measured."""
    step_seconds: float = 0.0
    """The whole step, planning and host work included: `MIN_STEP_SECONDS` to `MAX_STEP_SECONDS`; 0 if not measured."""
    reused_plan_steps: int = 0
    """Steps since the last outcome that reused an earlier plan without drafts. They have no outcome of their own. If 0,
    so are the next three."""
    reused_plan_tokens: int = 0
    """Tokens that those steps emitted."""
    reused_plan_prefill_tokens: int = 0
    """Prompt tokens that they computed."""
    reused_plan_seconds: float = 0.0
    """Duration of those steps, summed."""
    waiting_requests: int = 0
    """Requests queued when the outcome was reported."""
    failures: int = 0
    """Requests that failed in this step."""
    sources: IntArray | None = None
    """(n,) `Source` that made each draft; None: the drafter made all of them."""
    appended: IntArray | None = None
    """(n,) of the draft tokens that were verified, the last ones that the look-up appended to a draft of the drafter;
    None: none. They count in `drafted` and `proposed`."""


class Policy(Protocol):
    """Chooses draft lengths. `PolicyConfig.build` returns a policy.

    A policy sees only views and outcomes, never the engine. It may raise. `turbospec.controller.Controller` has the
    same two methods: it wraps a policy, never raises, and falls back to K = 0. Engines call the controller.
    `plan` and `observe` together should stay below 1 % of a step's time.
    """

    def plan(self, view: StepView) -> StepPlan:
        """Choose a step's draft lengths, each from 0 to its row's draft limit.

        A second call for the same step replaces the first plan.
        """
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a finished step. Outcomes may arrive steps later, or never, if the engine dropped the step.

        A step for which the controller reused a plan has an outcome, although `plan` was not called. Steps that the
        engine ran without calling the controller are summed in `StepOutcome.reused_plan_steps`.
        """
        ...
