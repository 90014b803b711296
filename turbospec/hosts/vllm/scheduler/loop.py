"""vLLM's steps in the controller's terms.

One step of vLLM runs the target over the drafts made in the step before, samples, and drafts for the step to come:

    vLLM's step t        verify d(t−1) │ draft d(t)
    vLLM's step t + 1                               verify d(t) │ draft d(t+1)
    the controller's step                └─── draft d(t), verify d(t) ───┘

The plan made while step t is scheduled is thus carried out by the end of step t and the beginning of step t + 1, and
closed by the output of step t + 1. Under async scheduling step t + 1 is scheduled before step t has ended; what is
said here of order holds all the same.

A plan of no drafts may be good for some steps: these run without a view, a plan or an outcome of their own, as long as
few of their requests came after the plan.

Where a step is scheduled only after the one before has ended, workers wait for whatever is decided in between. What
came of a step is therefore reported, and the next plan made, while the workers run the step after it (`settle`,
`plan_ahead`): between two steps there is only a plan to be cut to those that are still there. A few requests that
nobody could know of draft as the others do; a step with more of them is planned when it is scheduled.

How long a step took is the time from when the step before gave its tokens, or from when the engine turned to it after
it had nothing to do, until it gave its own. While requests are running that is the time from output to output: what a
step adds to the run, whether its scheduling overlapped with the step before or the drafts were fetched in between.
`StepSplit` says what part of it was drafting.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turbospec.hosts.vllm.scheduler.drafter_cache import DrafterCache
from turbospec.hosts.vllm.scheduler.requests import KnownRequest, KnownRequests, VllmRequest, is_unfinished
from turbospec.hosts.vllm.scheduler.step_split import NO_PASSES, Passes, StepSplit
from turbospec.hosts.vllm.scheduler.views import EngineLimits, Queue, Views
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders
from turbospec.interface import IntArray, Policy, StepOutcome, StepView

MIN_BATCH_PER_NEWCOMER = 4
"""Requests in a step for each that a plan made before it came is kept for."""
MIN_CROWD = 9
"""Requests in a step from which newcomers among them do not end a spell without drafts."""
MAX_CROWDS = 4
"""Such steps in a row: on a busy server nearly every step has newcomers."""


@dataclass(slots=True, frozen=True)
class Verified:
    """What a step made of a request's drafts."""

    drafted: int
    accepted: int
    emitted: int


VerifyResultFn = Callable[[], Mapping[str, Verified]]
"""Works out what became of each request that got tokens in a step; aborted ones are missing."""


@dataclass(slots=True, frozen=True)
class _Plan:
    view: StepView
    names: Sequence[str]
    """Of the view's requests."""
    lengths: IntArray
    """Draft lengths of the step's requests: of the view's, but for those that have gone since."""
    steps: int
    """That it is good for, if it drafts nothing."""


@dataclass(slots=True)
class _Step:
    """A step of vLLM on its way through the device, and until the drafts of its plan are verified."""

    began: float
    plan: _Plan | None
    """None where it runs on the plan of a step before."""
    tokens: int
    prefill_tokens: int
    context_tokens: int
    passes: Passes
    late: bool = False
    """Whether its passes run after its tokens have left, in the time of the step that follows."""
    follows: bool = False
    """Whether its time began when the step before gave its tokens."""
    seconds: float = 0.0
    """What it took, once it has ended; without all drafting, once that is known."""
    draft_seconds: float = 0.0
    """What its passes took, whenever they ran; known when the next step has ended."""


@dataclass(slots=True)
class _Idle:
    """A plan of no drafts that is good for some more steps."""

    known: dict[str, KnownRequest]
    """Requests that it was made for, or that have joined."""
    context_tokens: int
    steps: int
    joined: int = 0
    crowds: int = 0
    """Steps with newcomers that ran on it when it was no longer good."""

    def goes_on(self, scheduled: Mapping[str, KnownRequest]) -> bool:
        """Whether a step may run on it, whose newcomers have joined then; such a step is counted.

        What did not pay for a batch does not pay for it and a few more, least while their first tokens wait.
        """
        joined = self.joined + len(scheduled.keys() - self.known.keys())
        if self.steps == 0 or not _may_join(joined, len(scheduled)):
            return False
        self.steps, self.joined = self.steps - 1, joined
        self.known.update(scheduled)
        return True

    def takes_a_crowd(self, scheduled: Mapping[str, KnownRequest]) -> bool:
        """Whether a step with newcomers for which it is no longer good runs without drafts all the same; such a step
        is counted.

        Where many come at once, each waits for its first token and all would wait for a plan, made when every other
        process has work too. The step after it is planned, beside the workers. A few alone may be worth drafting for.
        """
        if len(scheduled) < MIN_CROWD or self.crowds == MAX_CROWDS or scheduled.keys() <= self.known.keys():
            return False
        self.steps, self.crowds = 0, self.crowds + 1
        self.known.update(scheduled)
        return True


def _may_join(newcomers: int, size: int) -> bool:
    """Whether a plan that knows nothing of some requests of a step is kept for it."""
    return newcomers * MIN_BATCH_PER_NEWCOMER <= size


class VllmLoop:
    """Drives a controller from a scheduler's `schedule` and `update_from_output`; knows no vLLM types.

    Args:
        controller: is asked for a plan for every step that is scheduled.
        limits: of the engine.
    """

    def __init__(self, controller: Policy, limits: EngineLimits) -> None:
        self.controller = controller
        self.known = KnownRequests()
        self.limits = limits
        self._cache: DrafterCache | None = None
        if limits.kept_tokens:
            self._cache = DrafterCache(
                limits.kept_tokens, limits.max_batched_tokens, prefix_caching=limits.prefix_caching
            )
        self._views = Views(limits, self._cache)
        self._split = StepSplit()
        self._steps: deque[_Step] = deque()
        """Scheduled and not yet finished, oldest first."""
        self._last: _Step | None = None
        """The step that finished last, whose drafts the next one verifies."""
        self._last_output = 0.0
        self._next_step = 0
        self._idle: _Idle | None = None
        self._ahead: _Plan | None = None
        """A plan that was made before its step was scheduled."""
        self._ended: deque[tuple[_Step, VerifyResultFn]] = deque()
        """Steps that are yet to be settled, oldest first."""
        self._reused_steps = self._reused_tokens = 0
        self._reused_seconds = 0.0

    def idle(self, num_scheduled: Mapping[str, int], began: float) -> tuple[bool, DrafterOrders | None]:
        """Whether a step is one more on a plan of no drafts, of a token for each of requests that the plan was made
        for; and if so, what `plan` would tell the worker. Such a step is only counted: `plan` is not to be called.
        """
        idle, tokens = self._idle, len(num_scheduled)
        if idle is None or idle.steps == 0 or sum(num_scheduled.values()) != tokens:
            return False, None
        if not num_scheduled.keys() <= idle.known.keys():
            return False, None
        known = [idle.known[name] for name in num_scheduled]
        orders = None
        if self._cache is not None and (orders := self._cache.idle(known)) is None:
            return False, None
        idle.steps -= 1
        idle.context_tokens += tokens
        self._next_step += 1
        self._steps.append(_Step(began, None, tokens, 0, idle.context_tokens, NO_PASSES))
        return True, orders

    def plan(
        self,
        requests: Sequence[VllmRequest],
        num_scheduled: Mapping[str, int],
        drafted: Mapping[str, int],
        resumed: Collection[str],
        queue: Queue,
        began: float,
    ) -> tuple[IntArray, DrafterOrders | None]:
        """Choose how many tokens each request drafts at the end of the step that is being scheduled.

        Args:
            requests: the n scheduled ones, before the step is added to their computed tokens.
            num_scheduled: tokens that the step computes for each of them, drafts included.
            drafted: drafts among them, of the requests that have some.
            resumed: those that start anew after a preemption.
            queue: requests that are not scheduled.
            began: when the engine turned to this step, or to an earlier one of those that followed each other without a
                pause, on the clock of `time.perf_counter`.

        Returns:
            (n,) draft lengths. The drafter makes the longest for the whole batch; the others are to be cut. And what
            the worker is to do with its drafter; None where that runs in every step.
        """
        names = [request.request_id for request in requests]
        known = [self.known.get(request) for request in requests]
        scheduled, lengths = dict(zip(names, known, strict=True)), np.zeros(len(names), np.int64)
        plan, prefill_tokens = None, sum(tokens for tokens in num_scheduled.values() if tokens > 1)
        if self._idle is None or not self._idle.goes_on(scheduled):
            foreseen = self._foreseen(requests, known, num_scheduled, resumed)
            if foreseen is not None:
                plan, prefill_tokens = foreseen
            elif self._idle is None or not self._idle.takes_a_crowd(scheduled):
                view, prefill_tokens = self._views.of_step(self._next_step, requests, known, num_scheduled, queue)
                plan = self._planned(view, names)
        if plan is not None:
            lengths, self._idle = plan.lengths, None
            if plan.steps > 1 and not lengths.any():
                self._idle = _Idle(scheduled, 0, plan.steps - 1, len(set(names) - set(plan.names)))
        self._next_step += 1
        computed = [request.num_computed_tokens + num_scheduled[request.request_id] for request in requests]
        orders = None
        if self._cache is not None:
            orders = self._cache.orders(
                known,
                names,
                num_scheduled,
                drafted,
                resumed,
                lengths,
                unfinished=any(map(is_unfinished, requests, computed)),
                drafter_fits=self._views.drafts_fit(max(computed)),
            )
        tokens, context_tokens = sum(num_scheduled.values()), sum(computed)
        if self._idle is not None:
            self._idle.context_tokens = context_tokens
        passes = self._passes(lengths, tokens, prefill_tokens, orders)
        step = _Step(began, plan, tokens, prefill_tokens, context_tokens, passes)
        if orders is not None and self.limits.late_drafts and lengths.any():
            step.late = orders.late = any(_brings_first_token(each, num_scheduled) for each in requests)
        self._steps.append(step)
        return lengths, orders

    def _passes(self, lengths: IntArray, tokens: int, prefill_tokens: int, orders: DrafterOrders | None) -> Passes:
        longest, size = int(lengths.max(initial=0)), len(lengths)
        if self.limits.parallel_drafter or (orders is not None and orders.skip):
            return NO_PASSES
        if orders is None:
            passes = max(longest - 1, 0)
            return Passes(passes, passes * size)
        # The first pass takes all that the target's took, and what was missed.
        passes, catch_up = max(longest, 1), sum(missed.tokens for missed in orders.catch_up.values())
        return Passes(passes, passes * size, tokens - size + catch_up, catch_up + prefill_tokens)

    def plan_ahead(self, requests: Sequence[VllmRequest], queue: Queue) -> None:
        """Choose the draft lengths of the step after the one that runs, from what is known while it runs.

        Not where the last plan of no drafts is good for that step too, nor where part of a prompt is left for it.

        Args:
            requests: of the step that runs, their tokens in it counted as computed.
            queue: requests that wait.
        """
        if self._idle is not None and self._idle.steps:
            return
        if not requests or any(request.num_computed_tokens < request.num_prompt_tokens for request in requests):
            return
        names = [request.request_id for request in requests]
        known = [self.known.get(request) for request in requests]
        tokens = dict.fromkeys(names, 1)
        view, _ = self._views.of_step(self._next_step, requests, known, tokens, queue, running=1)
        self._ahead = self._planned(view, names)
        if self._ahead.lengths.any():
            self._idle = None

    def _planned(self, view: StepView, names: Sequence[str]) -> _Plan:
        asked = self.controller.plan(view)
        return _Plan(view, names, asked.draft_lengths.copy(), asked.steps)

    def _foreseen(
        self,
        requests: Sequence[VllmRequest],
        known: Sequence[KnownRequest],
        num_scheduled: Mapping[str, int],
        resumed: Collection[str],
    ) -> tuple[_Plan, int] | None:
        """The plan that was made ahead for the step that is being scheduled, cut to who and what is left, and the
        prompt tokens of the step.

        It holds for a few newcomers too, who draft the others' median, unless the drafts would keep their first tokens
        waiting or part of their prompts is left. None where there is none that holds.
        """
        plan = self._ahead
        if plan is None or plan.view.step != self._next_step or resumed:
            return None
        foreseen = dict(zip(plan.names, plan.lengths.tolist(), strict=True))
        newcomers = [request for request in requests if request.request_id not in foreseen]
        if newcomers:
            if not _may_join(len(newcomers), len(requests)) or (plan.lengths.any() and not self.limits.late_drafts):
                return None
            if not all(_brings_first_token(request, num_scheduled) for request in newcomers):
                return None
            foreseen |= dict.fromkeys((request.request_id for request in newcomers), int(np.median(plan.lengths)))
        computed = [request.num_computed_tokens + num_scheduled[request.request_id] for request in requests]
        if plan.lengths.any() and not self._views.drafts_fit(max(computed)):
            return None
        lengths = np.zeros(len(requests), np.int64)
        for row, (request, asked) in enumerate(zip(requests, known, strict=True)):
            if (length := foreseen[request.request_id]) > 0:
                left = request.max_tokens - request.num_output_tokens - 1
                lengths[row] = min(length, self._views.draft_limit(asked, computed[row], left))
        prompts = sum(num_scheduled[request.request_id] for request in newcomers)
        return _Plan(plan.view, plan.names, lengths, plan.steps), prompts

    def finish(self, verify_result: VerifyResultFn) -> float:
        """Take the time of the oldest scheduled step, which has given its output, and say how many seconds it took.

        Args:
            verify_result: asked by `settle`, and only where it matters.
        """
        now = time.perf_counter()
        step = self._steps.popleft()
        step.follows = step.began <= self._last_output
        step.seconds = now - max(step.began, self._last_output)
        self._last_output = now
        self._ended.append((step, verify_result))
        return step.seconds

    def settle(self, queue: Queue) -> None:
        """Report what came of the steps that have ended.

        Args:
            queue: requests that wait now.
        """
        while self._ended:
            self._settle(*self._ended.popleft(), queue)

    def _settle(self, step: _Step, verify_result: VerifyResultFn, queue: Queue) -> None:
        closing, self._last = self._last, step
        late = closing.passes if closing is not None and closing.late and step.follows else NO_PASSES
        own = NO_PASSES if step.late else step.passes
        if step.plan is not None or late.number or own.number:
            late_seconds, step.draft_seconds = self._split.draft_seconds(
                step.seconds, step.tokens, step.context_tokens, late, own
            )
            step.seconds -= late_seconds + step.draft_seconds
            if closing is not None and closing.late:
                closing.draft_seconds = late_seconds
        untimed = closing is not None and closing.late and not step.follows
        if closing is not None and closing.plan is not None and not untimed:
            verified = verify_result()
            if not verified.keys().isdisjoint(closing.plan.names):
                self._close(closing, closing.plan, step, verified, queue)
        elif step.prefill_tokens == 0:
            # What it verified belongs to no plan, whether or not it began one.
            self._reused_steps += 1
            self._reused_tokens += step.tokens
            self._reused_seconds += step.seconds

    def _close(
        self,
        drafted_in: _Step,
        plan: _Plan,
        step: _Step,
        verified: Mapping[str, Verified],
        queue: Queue,
    ) -> None:
        """Report a plan whose drafts were made at the end of one step and verified in the next."""
        nothing = Verified(0, 0, 0)
        rows = [verified.get(name, nothing) for name in plan.names]
        drafted = np.array([row.drafted for row in rows], np.int64)
        accepted = np.array([row.accepted for row in rows], np.int64)
        emitted = np.array([row.emitted for row in rows], np.int64)
        view = plan.view
        # A pass for the cache alone, over prompts or after rejected drafts, is no drafting.
        drafts = bool(plan.lengths.any())
        passes = drafted_in.passes.number if drafts else 0
        draft_seconds = drafted_in.draft_seconds if drafts else 0.0
        # Prompt look-up makes its drafts in none of vLLM's passes, and is reported as one.
        reported = 1 if drafts and self.limits.parallel_drafter else passes
        self.controller.observe(
            StepOutcome(
                step=view.step,
                request_ids=view.request_ids,
                drafted=drafted,
                accepted=np.minimum(accepted, emitted),
                emitted=emitted,
                # What ended the output at an accepted draft token kept the tokens after it from being judged.
                truncated=(emitted > 0) & (emitted <= accepted),
                proposed=drafted,
                draft_rows=np.full(reported, view.size, np.int64),
                draft_context_tokens=passes * int(view.context_tokens.sum()),
                catch_up_tokens=drafted_in.passes.catch_up_tokens,
                tokens_batched=step.tokens,
                padded_tokens=step.tokens,
                prefill_tokens=step.prefill_tokens,
                context_tokens=step.context_tokens,
                draft_seconds=draft_seconds,
                verify_seconds=step.seconds,
                step_seconds=draft_seconds + step.seconds,
                reused_plan_steps=self._reused_steps,
                reused_plan_tokens=self._reused_tokens,
                reused_plan_seconds=self._reused_seconds,
                waiting_requests=queue.requests,
            )
        )
        self._reused_steps = self._reused_tokens = 0
        self._reused_seconds = 0.0


def _brings_first_token(request: VllmRequest, num_scheduled: Mapping[str, int]) -> bool:
    """Whether a step is the one that ends a request's prompt."""
    computed = request.num_computed_tokens + num_scheduled[request.request_id]
    return request.num_output_tokens == 0 and computed >= request.num_prompt_tokens
