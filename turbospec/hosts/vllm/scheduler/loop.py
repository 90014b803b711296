"""vLLM's steps as the controller sees them.

One step of vLLM runs the target over the drafts of the step before, samples, and drafts for the step after:

    vLLM's step t        verify d(t−1) │ draft d(t)
    vLLM's step t + 1                               verify d(t) │ draft d(t+1)
    the controller's step                └─── draft d(t), verify d(t) ───┘

A plan made while step t is scheduled is carried out by the end of step t and the beginning of step t + 1, and closed by
the output of step t + 1. Under async scheduling step t + 1 is scheduled before step t has ended; the order stays.

While a sync scheduler decides, its workers are idle. The loop therefore reports outcomes and makes the next plan
while the workers run a step (`settle`, `plan_ahead`), and the plan is fitted to the step when that is scheduled. Steps
without drafts may reuse a plan and then have no view, plan or outcome of their own (`turbospec.runtime.plan_reuse`).
With a look-up none of them does: it may find something in any step.

Workers time the drafter's passes, the target's pass and the pause between steps on their device (`StepTimes`). Where
they do not, a step's time is that from output to output, whatever was drafted in it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from turbospec.hosts.vllm.scheduler.batch import ScheduledBatch
from turbospec.hosts.vllm.scheduler.drafter_lag import DrafterLag
from turbospec.hosts.vllm.scheduler.drafter_pass_cost import NO_PASSES, DrafterPassCost, DrafterPasses
from turbospec.hosts.vllm.scheduler.drafter_use import DrafterUse
from turbospec.hosts.vllm.scheduler.kernels import compile_kernels, reported_columns
from turbospec.hosts.vllm.scheduler.lookups import Lookups
from turbospec.hosts.vllm.scheduler.requests import KnownRequests, VllmRequest
from turbospec.hosts.vllm.scheduler.steps import (
    ABSENT,
    AcceptedFn,
    ControllerPlan,
    LeftOut,
    OpenStep,
    Planned,
    ReusedSteps,
    TargetPass,
    Verified,
    VerifyResultFn,
)
from turbospec.hosts.vllm.scheduler.views import EngineLimits, Queue, Views
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders
from turbospec.hosts.vllm.shared.step_times import CapturedGraphs, StepTimes
from turbospec.interface import IntArray, Policy, Source, StepOutcome, StepView
from turbospec.runtime.plan_reuse import RunningPlan

LOOKUP = Source.LOOKUP.value


class VllmLoop:
    """Drives a controller from a scheduler's `schedule` and `update_from_output`; knows no vLLM types.

    Args:
        controller: plans every step that does not reuse a plan.
        limits: of the engine.
        lookups: beside the drafter; None for no look-up.
    """

    def __init__(self, controller: Policy, limits: EngineLimits, lookups: Lookups | None = None) -> None:
        compile_kernels()
        self.controller = controller
        self.lookups = lookups
        self.known = KnownRequests()
        self.limits = limits
        self._lag: DrafterLag | None = None
        if limits.kept_tokens:
            self._lag = DrafterLag(
                self.known,
                limits.kept_tokens,
                limits.max_batched_tokens,
                slots=limits.drafter_slots,
                prefix_caching=limits.prefix_caching,
                asynchronous=limits.async_scheduling,
            )
        self._views = Views(limits, self.known, self._lag, lookups)
        self._pass_cost = DrafterPassCost()
        longest_pass = max(limits.kept_tokens, limits.max_model_len)
        self._use = DrafterUse(limits.kept_tokens, longest_pass, self._pass_cost, asynchronous=limits.async_scheduling)
        self._steps: dict[int, OpenStep] = {}
        """Scheduled and not yet finished, by number, oldest first."""
        self._last: OpenStep | None = None
        """The step that finished last, whose drafts the next one verifies."""
        self._last_output = 0.0
        self._next_step = 0
        self._running: RunningPlan[str] | None = None
        """The last step's plan, which the next one may reuse; None with a look-up."""
        self._context_tokens = 0
        """KV tokens that the last step's target pass attends to."""
        self._batch_size = 0
        """Requests of the last step."""
        self._plan_of_newest: ControllerPlan | None = None
        """Of the step that was scheduled last; None where it reused one."""
        self._ahead: ControllerPlan | None = None
        """A plan made before its step was scheduled."""
        self._ended: deque[tuple[OpenStep, VerifyResultFn]] = deque()
        """Steps that have ended and are not yet reported, oldest first."""
        self._reused = ReusedSteps()
        self._stale: set[str] = set()
        """Requests that were in no step since the last error, and may have started anew in the step with it."""

    def reuse_plan(self, num_scheduled: Mapping[str, int], began: float) -> tuple[bool, DrafterOrders | None]:
        """Reuse a plan without drafts, where the step being scheduled has one token for each of its requests.

        The fast path, for steps whose requests are all known to the plan and go on where they were. Such a step is only
        counted: do not call `plan` for it.

        Returns:
            Whether the plan is reused, and the orders to the worker.
        """
        running, tokens = self._running, len(num_scheduled)
        # Where requests have left, the context has to be summed up anew.
        if running is None or tokens != self._batch_size or sum(num_scheduled.values()) != tokens:
            return False, None
        if not running.covers(num_scheduled.keys()):
            return False, None
        orders = None
        if self._lag is not None:
            rows = self.known.rows_named(num_scheduled)
            orders = None if rows is None else self._lag.idle_orders(rows, self._use.allowance)
            if orders is None:
                return False, None
        running.run(())
        self._plan_of_newest = None
        self._use.undrafted(tokens)
        self._context_tokens += tokens
        self._next_step += 1
        piecewise = self._is_piecewise(num_scheduled, 0)
        target = TargetPass(tokens, self._context_tokens, sampling=tokens, piecewise=piecewise)
        self._steps[self.newest] = OpenStep(self.newest, began, None, False, target, NO_PASSES)
        return True, orders

    def plan(
        self,
        requests: Sequence[VllmRequest],
        num_scheduled: Mapping[str, int],
        restarted: Collection[str],
        queue: Queue,
        began: float,
    ) -> Planned:
        """Choose how many tokens each request drafts at the end of the step that is being scheduled.

        Args:
            requests: the n scheduled ones, before the step is added to their computed tokens.
            num_scheduled: tokens that the step computes for each of them, drafts included; in the same order.
            restarted: requests that start anew, after a preemption, with the next input of a session, or with an id
                that is used again.
            queue: requests that are not scheduled.
            began: when the engine turned to this step, or to the first of an unbroken run of steps up to this one, on
                the clock of `time.perf_counter`.
        """
        restarted = self._restart(requests, num_scheduled, restarted)
        batch = ScheduledBatch.of(requests, num_scheduled, self.known)
        plan, lengths, looked_up = self._choose(batch, num_scheduled.keys(), restarted, queue)
        self._plan_of_newest = plan
        self._next_step += 1
        orders = None
        if self._lag is not None:
            orders, lengths = self._order(self._lag, batch, plan, lengths)
        self._context_tokens, self._batch_size, prefill_tokens = batch.context_tokens, batch.size, batch.prefill_tokens
        drafted = int(lengths.max(initial=0))
        if drafted > 1 and plan is not None:  # one pass needs no graph
            drafted = max(drafted, plan.passes)
        passes = self._passes(drafted, batch.size, batch.tokens, prefill_tokens, orders)
        drafts = bool(drafted)
        if drafts:
            self._use.drafted(experiment=plan is not None and plan.probe)
        else:
            self._use.undrafted(batch.sampling + batch.draft_tokens)
        piecewise = self._is_piecewise(num_scheduled, prefill_tokens)
        target = TargetPass(batch.tokens, self._context_tokens, batch.sampling, prefill_tokens, piecewise)
        planned = lengths if self.lookups is None else lengths + looked_up
        step = OpenStep(self.newest, began, plan, drafts, target, passes, planned)
        if self.limits.tokens_first:
            step.late = passes.number > 0
        elif orders is not None and self.limits.late_drafts and not orders.skip:
            step.late = orders.late = bool(batch.brings_first_token.any())
        if orders is not None and batch.draft_tokens:
            step.left_out = _left_out(batch, orders)
        self._steps[step.number] = step
        return Planned(lengths, drafted, looked_up, orders)

    def trim(self, num_scheduled: Mapping[str, int], drafts: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Shorten the drafts that a step verifies, where prompts have joined it. To be called before `plan`.

        Args:
            num_scheduled: tokens that the step computes for each of its requests, drafts included.
            drafts: tokens of each draft in it. A request that computes one token more is taken to have no prompt, also
                where that is the last token of one.

        Returns:
            Lengths of the drafts that become shorter.
        """
        plan = self._plan_of_newest
        if plan is None or plan.trim is None or not drafts or not self.limits.calls_trim:
            return {}
        tokens = sum(num_scheduled.values())
        if tokens - len(num_scheduled) <= sum(map(len, drafts.values())):  # no prompt
            return {}
        prompts = (each for name, each in num_scheduled.items() if each > 1 + len(drafts.get(name, ())))
        lengths = np.array([len(drafts.get(name, ())) for name in plan.names])
        if sum(prompts) <= plan.view.prefill_tokens or not lengths.any():
            return {}
        kept = plan.trim.trim(lengths, tokens)
        return {plan.names[row]: int(kept[row]) for row in np.flatnonzero(kept < lengths).tolist()}

    def plan_ahead(self, requests: Sequence[VllmRequest], queue: Queue) -> None:
        """Plan the step after the one that runs, from what is known while it runs.

        Not where that step may reuse the last plan, nor where it has a prefill chunk.

        Args:
            requests: of the step that runs, in its order, with its tokens counted as computed.
            queue: waiting requests.
        """
        if self._running is not None and self._running.valid:
            return
        if not requests or any(request.num_computed_tokens < request.num_prompt_tokens for request in requests):
            return
        tokens = dict.fromkeys((request.request_id for request in requests), 1)
        batch = ScheduledBatch.of(requests, tokens, self.known)
        running = self._steps.get(self.newest)
        drafts = 0 if running is None else running.planned
        view = self._views.of_step(self._next_step, batch, queue, running=1, drafts=drafts)
        self._ahead, _ = self._ask(view, batch.names)

    def finish(
        self, number: int, verify_result: VerifyResultFn, accepted: AcceptedFn, times: StepTimes | None = None
    ) -> float:
        """Record the duration of a step that has returned its output. Older steps are dropped: they return none.

        Args:
            number: of the step, which was `newest` when it was scheduled.
            verify_result: called by `settle`, and only if the step verified the drafts of a plan.
            accepted: called if the drafter lags by drafts of the step.
            times: of the step, as its worker measured them; None if it did not.

        Returns:
            Seconds since the output before, or since the engine turned to the step after a pause; 0 for a step that is
            not open, as after `reset`.
        """
        now = time.perf_counter()
        step = self._steps.pop(number, None)
        if step is None:
            return 0.0
        self._steps = {other: each for other, each in self._steps.items() if other > number}
        step.follows = step.began <= self._last_output
        step.seconds, step.times = now - max(step.began, self._last_output), times
        self._last_output = now
        self._use.add_time(step.seconds)
        if self._lag is not None and step.left_out is not None:
            self._lag.resolve(step.left_out.kept_step, accepted(step.left_out.names))
        self._ended.append((step, verify_result))
        return step.seconds

    @property
    def newest(self) -> int:
        """Number of the step that was scheduled last."""
        return self._next_step - 1

    def reset(self) -> None:
        """Drop the open steps and plans, after an error in one of them; what was learnt stays."""
        self._steps, self._last, self._running, self._ahead = {}, None, None, None
        self._plan_of_newest = None
        self._ended.clear()
        self._reused = ReusedSteps()
        self._next_step += 1  # the next step does not verify the drafts of a dropped one
        self._stale = {*self.known.names}
        if self._lag is not None:
            self._lag.lose_kept()

    def learn_graphs(self, graphs: CapturedGraphs) -> None:
        """Plan for the graphs that the workers have captured, as they report them with each step."""
        self._views.learn_graphs(graphs)

    def settle(self, queue: Queue) -> None:
        """Report the outcomes of the steps that have ended.

        Args:
            queue: requests that wait now.
        """
        while self._ended:
            self._settle(*self._ended.popleft(), queue)

    def _restart(
        self, requests: Sequence[VllmRequest], num_scheduled: Mapping[str, int], restarted: Collection[str]
    ) -> Collection[str]:
        """Forget the requests that start anew, those after an error included; returns their names."""
        if self._stale:
            restarted = {*restarted, *(self._stale & num_scheduled.keys())}
            self._stale = (self._stale - restarted) & self.known.names
        if restarted:
            for request in requests:
                if request.request_id in restarted:
                    self.known.restart(request)
            if self.lookups is not None:
                self.lookups.forget(restarted)
        return restarted

    def _choose(
        self, batch: ScheduledBatch, names: Set[str], restarted: Collection[str], queue: Queue
    ) -> tuple[ControllerPlan | None, IntArray, IntArray]:
        """The plan of a step, None where it reuses one, with draft lengths of the drafter and of the look-up."""
        if self._running is not None and self._running.admits(names):
            self._running.run(names)
            return None, np.zeros(batch.size, np.int64), np.zeros(batch.size, np.int64)
        plan = self._ahead
        fitted = None if plan is None else self._fit(plan, batch, names, restarted)
        if plan is not None and fitted is not None:
            lengths, looked_up = fitted
            # One that waits for room in a step keeps the drafts of an earlier plan.
            present = [name if name in names else ABSENT for name in plan.names]
            if ABSENT in present:
                plan = replace(plan, names=present)
        else:
            plan, lengths = self._ask(self._views.of_step(self._next_step, batch, queue), batch.names)
            looked_up = plan.lookup_lengths
        self._running = plan.reuse if self.lookups is None else None
        plan.reuse.run(names)
        return plan, lengths, looked_up

    def _order(
        self, lag: DrafterLag, batch: ScheduledBatch, plan: ControllerPlan | None, lengths: IntArray
    ) -> tuple[DrafterOrders, IntArray]:
        """The orders to the worker, and the draft lengths: 0 for requests that cannot catch up in the step."""
        allowed = self._use.allowance
        orders = lag.orders(
            batch.names,
            batch.rows,
            batch.scheduled,
            batch.drafts,
            lengths,
            batch.missing,
            allowed,
            drafter_fits=self._views.drafts_fit(batch),
        )
        if plan is not None and plan.padded_length and (lengths < plan.padded_length).any():
            # One that cannot catch up drafts nothing, so that the step replays no graph.
            lengths = np.minimum(lengths, self._unpadded(plan, batch)[0])
        if not (orders.skip or lengths.any()) and allowed.permits_lag(batch.draft_tokens):
            computed = sum(each.tokens for each in orders.catch_up.values())
            if not allowed.in_use:
                computed += batch.tokens
            self._use.spent(computed)
        return orders, lengths

    def _ask(self, view: StepView, names: Sequence[str]) -> tuple[ControllerPlan, IntArray]:
        """Have the controller plan a view of the requests of these names; the drafter's lengths with padding."""
        asked = self.controller.plan(view)
        lengths, reuse = asked.draft_lengths, RunningPlan(asked, names)
        padded_length = asked.padded_length if reuse.drafts else 0
        lookup_lengths = np.zeros(view.size, np.int64)
        if asked.sources is not None:
            lookup_lengths = np.where(asked.sources == LOOKUP, lengths, 0)
            if lookup_lengths.any():
                padded_length = 0  # the look-up may find fewer tokens, so that the batch is not surely uniform
        plan = ControllerPlan(
            view,
            names,
            lengths,
            lookup_lengths,
            asked.sources,
            padded_length,
            asked.passes,
            asked.probe,
            asked.trim,
            reuse,
        )
        return plan, np.full(view.size, padded_length) if padded_length else lengths - lookup_lengths

    def _fit(
        self, plan: ControllerPlan, batch: ScheduledBatch, names: Set[str], restarted: Collection[str]
    ) -> tuple[IntArray, IntArray] | None:
        """Draft lengths of a step that was planned ahead, as `_unpadded`; None where the plan cannot be used.

        It can be used with a few newly admitted requests, unless drafting would delay their first tokens or part of
        their prompts is left for later steps.
        """
        if plan.view.step != self._next_step or restarted or not plan.reuse.admits(names):
            return None
        new = plan.reuse.rows_of_new(batch.names)
        if new and plan.reuse.drafts and self.limits.first_tokens_wait:
            return None
        if new and not batch.brings_first_token[new].all():
            return None
        if plan.reuse.drafts and not self._views.drafts_fit(batch):
            return None
        if plan.padded_length and not new and plan.padded_length <= self._views.paddable(batch):
            return np.full(batch.size, plan.padded_length), np.zeros(batch.size, np.int64)
        return self._unpadded(plan, batch)

    def _unpadded(self, plan: ControllerPlan, batch: ScheduledBatch) -> tuple[IntArray, IntArray]:
        """(n,) draft lengths of a plan, of drafter and look-up, in a step that replays no full CUDA graph."""
        lengths, looked_up = plan.drafts_of(batch.names)
        limits = self._views.draft_limits(batch, batch.max_tokens - batch.output - 1)
        return np.minimum(lengths, limits), looked_up

    def _is_piecewise(self, num_scheduled: Mapping[str, int], prefill_tokens: int) -> bool:
        """Whether the step being scheduled misses a full CUDA graph because of its draft lengths."""
        if prefill_tokens or not self._views.graphs.target:
            return False
        longest, shortest = max(num_scheduled.values()), min(num_scheduled.values())
        graphs = self._views.full_graphs(len(num_scheduled))
        return bool(graphs) and not (longest == shortest and longest - 1 in graphs)

    def _passes(
        self, drafted: int, size: int, tokens: int, prefill_tokens: int, orders: DrafterOrders | None
    ) -> DrafterPasses:
        if self.limits.drafter_is_lookup or (orders is not None and orders.skip):
            return NO_PASSES
        number = min(drafted, 1) if self.limits.parallel_drafter else drafted
        if orders is None:
            passes = number if self.limits.heads else max(number - 1, 0)
            return DrafterPasses(passes, passes * size)
        # The first pass takes all tokens of the target's pass, and the lag that is caught up.
        passes, catch_up = max(number, 1), sum(lag.tokens for lag in orders.catch_up.values())
        return DrafterPasses(passes, passes * size, tokens - size + catch_up, catch_up + prefill_tokens)

    def _settle(self, step: OpenStep, verify_result: VerifyResultFn, queue: Queue) -> None:
        closing, self._last = self._last, step
        if closing is not None and closing.number != step.number - 1:
            closing = None
        if step.times is not None:
            self._take_times(step, step.times, closing)
        # Late drafts before a pause were made during the pause: unless measured, their duration is unknown.
        untimed = step.times is None and closing is not None and closing.late and not step.follows
        if closing is not None and closing.plan is not None and not untimed:
            verified = verify_result(closing.plan.names)
            if verified.valid.any():
                self._close(closing, closing.plan, step, verified, queue)
        elif closing is not None and closing.plan is None and not untimed:  # the step before it reused a plan
            self._reused.add(step.target, step.seconds)

    def _take_times(self, step: OpenStep, times: StepTimes, closing: OpenStep | None) -> None:
        """Set the measured durations of a step's target pass and of the drafting before it."""
        step.seconds = times.target + (times.pause if step.follows else 0.0)
        self.learn_graphs(times.graphs)
        if closing is not None and closing.passes.number and not self.limits.first_pass_every_step:
            closing.draft_seconds = times.drafting
            self._pass_cost.learn(closing.passes, times.drafting)
        else:
            # Inputs that were kept, or passes that every step has: no plan saves them.
            step.seconds += times.drafting

    def _close(
        self,
        drafted_in: OpenStep,
        plan: ControllerPlan,
        step: OpenStep,
        verified: Verified,
        queue: Queue,
    ) -> None:
        """Report a plan whose drafts were made at the end of one step and verified in the next."""
        view, emitted = plan.view, verified.emitted
        drafted, accepted, truncated = reported_columns(
            verified.drafted, verified.accepted, emitted, plan.lengths, plan.padded_length > 0
        )
        # A pass that only updates the drafter's KV cache, over prompts or after rejected drafts, is not drafting.
        passes = drafted_in.passes.number if drafted_in.drafts else 0
        draft_seconds = drafted_in.draft_seconds if drafted_in.drafts else 0.0
        reused = self._reused.take()
        self.controller.observe(
            StepOutcome(
                step=view.step,
                request_ids=view.request_ids,
                drafted=drafted,
                accepted=accepted,
                emitted=emitted,
                truncated=truncated,
                proposed=drafted,
                draft_rows=np.full(passes, view.size, np.int64),
                draft_context_tokens=passes * int(view.context_tokens.sum()),
                catch_up_tokens=drafted_in.passes.catch_up_tokens,
                tokens_batched=step.target.tokens,
                padded_tokens=step.target.tokens,
                piecewise=step.target.piecewise,
                prefill_tokens=step.target.prefill_tokens,
                context_tokens=step.target.context_tokens,
                draft_seconds=draft_seconds,
                verify_seconds=step.seconds,
                step_seconds=draft_seconds + step.seconds,
                reused_plan_steps=reused.steps,
                reused_plan_tokens=reused.tokens,
                reused_plan_prefill_tokens=reused.prefill_tokens,
                reused_plan_seconds=reused.seconds,
                waiting_requests=queue.requests,
                sources=plan.sources,
            )
        )


def _left_out(batch: ScheduledBatch, orders: DrafterOrders) -> LeftOut | None:
    if not (orders.skip or orders.keep):
        return None
    names = [batch.names[row] for row in np.flatnonzero(batch.drafts).tolist()]
    if not orders.skip:
        names = [name for name in names if name in orders.keep]
    return LeftOut(orders.step, names) if names else None
