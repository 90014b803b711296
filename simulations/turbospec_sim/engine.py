"""The simulated engine's loop: schedule, plan, draft, verify, emit, observe, on a simulated clock.

The engine makes views, executes plans and reports outcomes; the real controller decides. No wall clock is read: a run
is a function of its scenario, its policy and its seed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turbospec.controller import Controller
from turbospec.errors import UserError
from turbospec.interface import IntArray, LookupView, StepOutcome, StepPlan, StepView
from turbospec_sim import steps
from turbospec_sim.confidence import draft_confidence
from turbospec_sim.drafting import DrafterPasses
from turbospec_sim.interrupts import deferred_interrupts
from turbospec_sim.limits import LAST_MOMENT
from turbospec_sim.state import EngineState

NO_TOKENS = np.zeros(0, np.int64)


class _Unverified(NamedTuple):
    """A plan whose drafts are made and not verified yet."""

    view: StepView
    slots: IntArray
    drafter: DrafterPasses
    proposed: IntArray | None
    """As in `_report`."""
    sources: IntArray | None
    """Of the plan."""


class SimulatedEngine:
    """Serves the requests of a state to the end.

    Args:
        state: the arrays of the run; no request has been served yet.
        controller: is asked for a plan once a step.
    """

    def __init__(self, state: EngineState, controller: Controller) -> None:
        self.state = state
        self.controller = controller
        self.now = 0.0
        self.measured_from = 0.0
        """When the measured part began, after the warm-up."""
        self._step = 0
        self._unverified: _Unverified | None = None

    def run(self) -> None:
        """Serve every request.

        Raises:
            KeyboardInterrupt: Ctrl-C, between two steps.
            UserError: the clock passed `LAST_MOMENT`.
        """
        state = self.state
        run_step = self._step_drafting_last if state.draft_before_emit else self._step_drafting_first
        self._begin_measuring_if_warm()
        with deferred_interrupts() as interrupts:
            while not interrupts:
                if run_step():
                    if not self.now < LAST_MOMENT:
                        raise UserError(
                            f"the simulated clock passed {LAST_MOMENT:g} s; check the scenario's rates and step times"
                        )
                    continue
                arrival = steps.next_arrival(state.engine, state.offered)
                if arrival < math.inf:
                    self.now = max(self.now, arrival)
                elif not self._begin_measuring_if_warm():
                    return
        raise KeyboardInterrupt

    def _begin_measuring_if_warm(self) -> bool:
        """Start the measured part once the warm-up is served; False where it has started already."""
        if not self.state.begin_measuring(self.now):
            return False
        self.measured_from = self.now
        return True

    def _view(self, columns: IntArray, prefill_tokens: int, waiting: int, waiting_seconds: float) -> StepView:
        state = self.state
        state.view_slots, ids, phase, context, emitted, left, lag, classes, limits, found, scores = columns
        return StepView(
            step=self._step,
            now=self.now,
            request_ids=ids,
            phase=phase,
            context_tokens=context,
            emitted_tokens=emitted,
            tokens_left=left,
            drafter_lag_tokens=lag,
            class_ids=classes,
            draft_limits=limits,
            max_draft=state.max_draft,
            waiting_requests=waiting,
            waiting_seconds=waiting_seconds,
            prefill_tokens=prefill_tokens,
            draft_before_emit=state.draft_before_emit,
            parallel_drafter=state.parallel_drafter,
            batch_drafter=state.batch_drafter,
            first_pass_every_step=state.first_pass_every_step,
            lookup=LookupView(found, scores.astype(np.float64)) if state.offers_lookup else None,
            graph_lengths=() if prefill_tokens else state.times.full_graphs(ids.size),
        )

    def _step_drafting_first(self) -> bool:
        """Draft, verify, emit: a step's tokens leave before any drafting for the next step. False without requests."""
        state = self.state
        opened = steps.open_step(state.arrays, self.now)
        if not opened.size:
            return False
        view = self._view(opened.columns, opened.prefill_tokens, opened.waiting_requests, opened.waiting_seconds)
        plan = self.controller.plan(view)
        proposed = self._select(plan)
        done = steps.draft_and_verify(
            state.arrays,
            opened.size,
            state.view_slots,
            plan.draft_lengths,
            self._sources(plan),
            _padding(plan),
            self.now,
        )
        self.now = done.now
        self._report(view, done, proposed, plan.sources, opened.prefill_tokens, opened.waiting_requests)
        self._step += 1
        return True

    def _step_drafting_last(self) -> bool:
        """Verify the drafts of the step before, draft for the next step, emit: vLLM's order. False without requests.

        A plan is executed by the end of one step and the beginning of the next one; its outcome has the times of both.
        """
        state, before = self.state, self._unverified
        verified = steps.verify_batch(state.arrays, NO_TOKENS if before is None else before.slots, self.now)
        if not verified.size:
            return False
        if before is not None:
            drafter = before.drafter
            done = steps.FinishedStep(
                now=self.now,
                judged=verified.judged,
                draft_rows=drafter.rows,
                draft_context_tokens=drafter.context_tokens,
                catch_up_tokens=drafter.catch_up_tokens,
                tokens_batched=verified.tokens_batched,
                padded_tokens=verified.padded_tokens,
                context_tokens=verified.context_tokens,
                draft_seconds=drafter.seconds,
                verify_seconds=verified.verify_seconds,
                step_seconds=drafter.seconds + verified.verify_seconds + verified.host_seconds,
                piecewise=verified.piecewise,
            )
            self._report(
                before.view,
                done,
                before.proposed,
                before.sources,
                verified.prefill_tokens,
                verified.waiting_requests,
            )
        self.now = self.now + verified.host_seconds + verified.verify_seconds
        slots, lengths, sources, padded_length = NO_TOKENS, NO_TOKENS, NO_TOKENS, 0
        view = plan = proposed = None
        state.engine["selection"] = False
        if verified.columns.shape[1]:
            view = self._view(
                verified.columns, verified.next_prefill_tokens, verified.waiting_requests, verified.waiting_seconds
            )
            plan = self.controller.plan(view)
            slots, lengths, padded_length = state.view_slots, plan.draft_lengths, _padding(plan)
            sources = self._sources(plan)
            proposed = self._select(plan)
        drafter = steps.draft_and_emit(state.arrays, verified.size, slots, lengths, sources, padded_length, self.now)
        self.now += drafter.seconds
        self._unverified = None
        if view is not None and plan is not None:
            self._unverified = _Unverified(view, slots, drafter, proposed, plan.sources)
        self._step += 1
        return True

    def _sources(self, plan: StepPlan) -> IntArray:
        """(n,) `Source` of each draft of a plan."""
        return self.state.all_of_drafter[: plan.draft_lengths.size] if plan.sources is None else plan.sources

    def _select(self, plan: StepPlan) -> IntArray | None:
        """Let a plan select what is verified of its drafts; their lengths, or None where it does not."""
        state, correlation = self.state, self.state.confidence_correlation
        selects = plan.selection is not None and correlation is not None and bool(plan.draft_lengths.any())
        state.engine["selection"] = selects
        if plan.selection is None or correlation is None or not selects:
            return None
        confidence = draft_confidence(state, plan.draft_lengths, correlation)
        state.requests["selected"][state.view_slots] = plan.selection.select(plan.draft_lengths, confidence)
        return plan.draft_lengths

    def _report(
        self,
        view: StepView,
        done: steps.FinishedStep,
        proposed: IntArray | None,
        sources: IntArray | None,
        prefill_tokens: int,
        waiting_requests: int,
    ) -> None:
        """Pass the outcome of an executed plan to the controller.

        Args:
            view: of the plan.
            done: what it came to.
            proposed: (n,) draft tokens made, if more than were verified.
            sources: of the plan.
            prefill_tokens: prompt tokens in the target's pass.
            waiting_requests: queued requests.
        """
        drafted, accepted, emitted, truncated = done.judged
        # Of a request that was not in the step, nothing counts as proposed.
        made: IntArray = drafted if proposed is None else np.where(emitted > 0, proposed, drafted)
        self.controller.observe(
            StepOutcome(
                step=view.step,
                request_ids=view.request_ids,
                drafted=drafted,
                accepted=accepted,
                emitted=emitted,
                truncated=truncated.astype(np.bool_),
                proposed=made,
                draft_rows=done.draft_rows,
                draft_context_tokens=done.draft_context_tokens,
                catch_up_tokens=done.catch_up_tokens,
                tokens_batched=done.tokens_batched,
                padded_tokens=done.padded_tokens,
                piecewise=done.piecewise,
                prefill_tokens=prefill_tokens,
                context_tokens=done.context_tokens,
                draft_seconds=done.draft_seconds,
                verify_seconds=done.verify_seconds,
                step_seconds=done.step_seconds,
                waiting_requests=waiting_requests,
                sources=sources,
            )
        )


def _padding(plan: StepPlan) -> int:
    """The plan's `padded_length`, 0 where nothing is drafted."""
    return plan.padded_length if plan.padded_length and plan.draft_lengths.any() else 0
