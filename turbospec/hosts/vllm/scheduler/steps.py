"""Records of a step of vLLM, from its scheduling until the drafts of its plan are verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turbospec.hosts.vllm.scheduler.drafter_pass_cost import DrafterPasses
from turbospec.hosts.vllm.scheduler.requests import values_by_name
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders
from turbospec.hosts.vllm.shared.step_times import StepTimes
from turbospec.interface import BoolArray, DraftTrim, IntArray, StepView
from turbospec.runtime.plan_reuse import RunningPlan

UNPLANNED = -1
"""In place of a draft length, of a request that a plan was not made for."""
ABSENT = ""
"""In place of a request's name; no request has it."""


class Planned(NamedTuple):
    """What a step is to draft at its end, for each of its n requests."""

    lengths: IntArray
    """(n,) draft lengths of the drafter, padding included."""
    passes: int
    """Tokens that it drafts for the whole batch, the longest length or more; drafts are to be cut to their lengths."""
    lookup_lengths: IntArray
    """(n,) longest draft of the look-up; 0 where it drafts nothing."""
    orders: DrafterOrders | None
    """To the worker's drafter; None where the drafter runs in every step."""


@dataclass(slots=True, frozen=True)
class Verified:
    """The verification of a plan's drafts in one step; one row per request of the plan."""

    valid: BoolArray
    """(n,) whether the request was in the step, and vLLM did not drop what was sampled for it, as after an abort. In
    other rows the columns below are 0."""
    drafted: IntArray
    accepted: IntArray
    emitted: IntArray


VerifyResultFn = Callable[[Sequence[str]], Verified]
"""Returns what a step did with the drafts of these n requests."""
AcceptedFn = Callable[[Sequence[str]], Mapping[str, int]]
"""Returns how many drafts a step's target accepted for each of these requests, whatever was emitted of them."""


class LeftOut(NamedTuple):
    """Requests whose drafts a step verifies, and whose tokens in it the drafter does not compute."""

    kept_step: int
    """Number of the step among those that the worker keeps."""
    names: Sequence[str]


class TargetPass(NamedTuple):
    """The target's pass of a step."""

    tokens: int
    context_tokens: int
    """KV tokens that it attends to."""
    sampling: int
    """Requests that it samples for."""
    prefill_tokens: int = 0
    piecewise: bool = False
    """As in a `StepOutcome`."""


@dataclass(slots=True, frozen=True)
class ControllerPlan:
    """A plan of the controller and the view it was made for."""

    view: StepView
    names: Sequence[str]
    """Of the view's requests; `ABSENT` for those that the plan's step did not schedule."""
    lengths: IntArray
    """(n,) draft lengths without padding."""
    lookup_lengths: IntArray
    """(n,) those that are of the look-up."""
    sources: IntArray | None
    """(n,) of a `StepPlan`."""
    padded_length: int
    passes: int
    probe: bool
    trim: DraftTrim | None
    """Of a `StepPlan`, as the three before."""
    reuse: RunningPlan[str]

    def drafts_of(self, names: Sequence[str]) -> tuple[IntArray, IntArray]:
        """(m,) draft lengths of the drafter, without padding, and of the look-up, for m requests in any order.

        A request that the plan was not made for gets the drafter's median length; nothing where a look-up drafts for
        others, because what it would find for that request is not known.
        """
        lengths = np.array(self.reuse.lengths(names), np.int64)
        if not self.lookup_lengths.any():
            return lengths, np.zeros_like(lengths)
        of_lookup = dict(zip(self.names, self.lookup_lengths.tolist(), strict=True))
        looked_up = values_by_name(of_lookup, names, UNPLANNED)
        return np.where(looked_up == 0, lengths, 0), np.maximum(looked_up, 0)


@dataclass(slots=True)
class OpenStep:
    """A step of vLLM that was scheduled, and whose plan's drafts are not yet verified."""

    number: int
    began: float
    plan: ControllerPlan | None
    """None where the step reuses an earlier plan."""
    drafts: bool
    """Whether the drafter drafts in the step."""
    target: TargetPass
    passes: DrafterPasses
    planned: IntArray | int = 0
    """(n,) longest drafts of its requests, of both sources, that the next step verifies; 0 for none."""
    left_out: LeftOut | None = None
    """None where the drafter computes what the step verifies."""
    late: bool = False
    """Whether its passes run after its tokens were sent."""
    follows: bool = False
    """Whether its time began when the step before returned its tokens."""
    seconds: float = 0.0
    """Its duration, once it has ended; without drafting, where its worker measured that."""
    times: StepTimes | None = None
    """As its worker measured them."""
    draft_seconds: float = 0.0
    """Duration of its passes, whenever they ran, once the next step has ended; 0 where it was not measured."""


@dataclass(slots=True)
class ReusedSteps:
    """Steps that ran on a reused plan and have no outcome of their own; the next outcome reports them in sums."""

    steps: int = 0
    tokens: int = 0
    """Tokens that they emitted."""
    prefill_tokens: int = 0
    """Prompt tokens that they computed."""
    seconds: float = 0.0

    def add(self, target: TargetPass, seconds: float) -> None:
        """Count one more step, which verified no drafts."""
        self.steps += 1
        self.tokens += target.sampling
        self.prefill_tokens += target.prefill_tokens
        self.seconds += seconds

    def take(self) -> ReusedSteps:
        """The sums since the last call, which start again from 0."""
        taken = ReusedSteps(self.steps, self.tokens, self.prefill_tokens, self.seconds)
        self.steps, self.tokens, self.prefill_tokens, self.seconds = 0, 0, 0, 0.0
        return taken
