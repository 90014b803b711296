"""The simulated engine's loop: schedule, plan, draft, verify, emit, observe, under a clock of its own.

The engine makes views, carries plans out and reports outcomes; decisions are the real controller's. No wall clock is
read, so that a run is a function of its scenario, its policy and its seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turbospec.controller import Controller
from turbospec.errors import UserError
from turbospec.interface import IntArray, StepOutcome, StepView
from turbospec_sim import steps
from turbospec_sim.interrupts import deferred_interrupts
from turbospec_sim.state import EngineState

LAST_MOMENT = 1e12
"""Seconds at which a run is given up: with larger ones the clock has no room left for the length of a step."""
NO_TOKENS = np.zeros(0, np.int64)


@dataclass(slots=True)
class _Drafted:
    """A plan whose drafts are made and not yet verified."""

    view: StepView
    slots: IntArray
    seconds: float
    rows: IntArray
    context_tokens: int
    catch_up_tokens: int


class SimulatedEngine:
    """Serves the requests of a state to the end.

    Args:
        state: the arrays, with all requests still to be served.
        controller: is asked for a plan once a step.
    """

    def __init__(self, state: EngineState, controller: Controller) -> None:
        self.state = state
        self.controller = controller
        self.now = 0.0
        self.measured_from = 0.0
        """When the measured part began, after the warm-up."""
        self._step = 0
        self._drafted: _Drafted | None = None

    def run(self) -> None:
        """Serve every request.

        Raises:
            KeyboardInterrupt: Ctrl-C, between two steps.
            UserError: the clock passed `LAST_MOMENT`.
        """
        state = self.state
        step = self._step_drafting_last if state.draft_before_emit else self._step_drafting_first
        self._begin_measuring_if_warm()
        with deferred_interrupts() as interrupts:
            while not interrupts:
                size = steps.schedule_step(self.now, *state.scheduling)
                if size:
                    step(size)
                    if not self.now < LAST_MOMENT:
                        raise UserError(
                            f"the simulated clock passed {LAST_MOMENT:g} s; look at the scenario's rates and step times"
                        )
                    continue
                arrival = steps.next_arrival(state.engine, state.offered)
                if arrival < math.inf:
                    self.now = max(self.now, arrival)
                elif not self._begin_measuring_if_warm():
                    return
        raise KeyboardInterrupt

    def _begin_measuring_if_warm(self) -> bool:
        """Let the measured requests come once all before them are served; False where they have come already."""
        if not self.state.begin_measuring(self.now):
            return False
        self.measured_from = self.now
        return True

    def _view(self, columns: IntArray, prefill_tokens: int, waiting: int, waiting_seconds: float) -> StepView:
        state = self.state
        _, ids, phase, context, emitted, left, stale, classes, limits = columns
        return StepView(
            step=self._step,
            now=self.now,
            request_ids=ids,
            phase=phase,
            context_tokens=context,
            emitted_tokens=emitted,
            tokens_left=left,
            drafter_lag_tokens=stale,
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
        )

    def _step_drafting_first(self, size: int) -> None:
        """Draft, verify, emit: tokens leave before any drafting for the next step."""
        state = self.state
        columns, prefill_tokens, waiting, waiting_seconds = steps.open_step(size, self.now, *state.viewing)
        view = self._view(columns, prefill_tokens, waiting, waiting_seconds)
        state.view_slots = columns[0]
        plan = self.controller.plan(view)
        (
            self.now, drafted, rows, draft_seconds, draft_context, catch_up,
            verify_seconds, step_seconds, tokens, with_padding, context,
        ) = steps.draft_and_verify(size, columns[0], plan.draft_lengths, self.now, *state.running)  # fmt: skip
        self.controller.observe(
            StepOutcome(
                step=view.step,
                request_ids=view.request_ids,
                drafted=drafted[0],
                accepted=drafted[1],
                emitted=drafted[2],
                truncated=drafted[3].astype(np.bool_),
                proposed=drafted[0],
                draft_rows=rows,
                draft_context_tokens=draft_context,
                catch_up_tokens=catch_up,
                tokens_batched=tokens,
                padded_tokens=with_padding,
                prefill_tokens=prefill_tokens,
                context_tokens=context,
                draft_seconds=draft_seconds,
                verify_seconds=verify_seconds,
                step_seconds=step_seconds,
                waiting_requests=waiting,
            )
        )
        self._step += 1

    def _step_drafting_last(self, size: int) -> None:
        """Verify the drafts of the step before, draft for the next step, emit: vLLM's order.

        A plan is carried out by the end of one step and the beginning of the next, and so is its outcome's time.
        """
        state, before = self.state, self._drafted
        began = self.now
        slots = NO_TOKENS if before is None else before.slots
        (
            columns, announced, waiting, waiting_seconds, verified,
            verify_seconds, host_seconds, tokens, with_padding, prefill_tokens, context,
        ) = steps.verify_batch(size, slots, began, *state.running)  # fmt: skip
        if before is not None:
            self.controller.observe(
                StepOutcome(
                    step=before.view.step,
                    request_ids=before.view.request_ids,
                    drafted=verified[0],
                    accepted=verified[1],
                    emitted=verified[2],
                    truncated=verified[3].astype(np.bool_),
                    proposed=verified[0],
                    draft_rows=before.rows,
                    draft_context_tokens=before.context_tokens,
                    catch_up_tokens=before.catch_up_tokens,
                    tokens_batched=tokens,
                    padded_tokens=with_padding,
                    prefill_tokens=prefill_tokens,
                    context_tokens=context,
                    draft_seconds=before.seconds,
                    verify_seconds=verify_seconds,
                    step_seconds=before.seconds + verify_seconds + host_seconds,
                    waiting_requests=waiting,
                )
            )
        self._drafted = None
        self.now = began + host_seconds + verify_seconds
        lengths, slots, view = NO_TOKENS, columns[0], None
        if len(slots):
            view = self._view(columns, announced, waiting, waiting_seconds)
            state.view_slots = slots
            lengths = self.controller.plan(view).draft_lengths
        self.now, rows, draft_seconds, draft_context, catch_up = steps.draft_and_emit(
            size, slots, lengths, self.now, *state.running
        )
        if view is not None:
            self._drafted = _Drafted(view, slots, draft_seconds, rows, draft_context, catch_up)
        self._step += 1
