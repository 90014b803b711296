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
from turbospec.interface import DraftTrim, FloatArray, IntArray, LookupView, Source, StepOutcome, StepPlan, StepView
from turbospec_sim import steps
from turbospec_sim.confidence import draft_confidence
from turbospec_sim.drafting import DrafterPasses
from turbospec_sim.gating import gated_drafts
from turbospec_sim.interrupts import deferred_interrupts
from turbospec_sim.limits import LAST_MOMENT
from turbospec_sim.records import Record
from turbospec_sim.state import EngineState

NO_TOKENS = np.zeros(0, np.int64)


class _Drafts(NamedTuple):
    """What is drafted for a plan."""

    lengths: IntArray
    """(n,) tokens drafted: as planned, or up to where the plan's gate ended the drafts."""
    sources: IntArray | None
    """(n,) `Source` of each draft; None: the drafter makes all of them."""
    padded_length: int
    """Of the plan, 0 where nothing is drafted."""
    kept: IntArray | None = None
    """(n,) tokens of each draft to verify; None: all."""
    confidence: FloatArray | None = None
    """(n, longest draft) the drafter's confidence in each token; None where policies do not see it."""
    append_limits: IntArray | None = None
    """(n,) most tokens that the look-up appends, of the plan; None: none."""
    trim: DraftTrim | None = None
    """Of the plan."""


class _Unverified(NamedTuple):
    """A plan whose drafts are made and not verified yet."""

    view: StepView
    slots: IntArray
    drafter: DrafterPasses
    drafts: _Drafts


NO_DRAFTS = _Drafts(NO_TOKENS, None, 0)


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

    def _view(
        self,
        columns: IntArray,
        prefill_tokens: int,
        waiting: int,
        waiting_seconds: float,
        admitted: int = 0,
        drafter_prefill_tokens: int = 0,
    ) -> StepView:
        """The view of a step; arguments as in a `StepView`."""
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
            admitted_requests=admitted,
            prefill_tokens=prefill_tokens,
            prefill_limited=bool(state.engine["admissible"][0]),
            drafter_kv_share=_contended_kv_share(state.engine[0]),
            draft_before_emit=state.draft_before_emit,
            parallel_drafter=state.parallel_drafter,
            batch_drafter=state.batch_drafter,
            first_pass_every_step=state.first_pass_every_step,
            drafter_prefill_tokens=drafter_prefill_tokens,
            calls_gate=state.calls_gate,
            calls_trim=state.draft_before_emit,
            lookup=LookupView(found, scores.astype(np.float64), state.appends_lookup) if state.offers_lookup else None,
            graph_lengths=() if prefill_tokens or admitted else state.times.full_graphs(ids.size),
            largest_graph=state.times.largest_graph,
        )

    def _step_drafting_first(self) -> bool:
        """Draft, verify, emit: a step's tokens leave before any drafting for the next step. False without requests."""
        state = self.state
        opened = steps.open_step(state.arrays, self.now)
        if not opened.size:
            return False
        view = self._view(opened.columns, opened.prefill_tokens, opened.waiting_requests, opened.waiting_seconds)
        drafts = self._apply_gate_and_selection(self.controller.plan(view))
        done = steps.draft_and_verify(
            state.arrays,
            opened.size,
            state.view_slots,
            drafts.lengths,
            self._sources(drafts),
            drafts.padded_length,
            NO_TOKENS if drafts.append_limits is None else drafts.append_limits,
            self.now,
        )
        self.now = done.now
        self._report(view, done, drafts, opened.prefill_tokens, opened.waiting_requests)
        self._step += 1
        return True

    def _step_drafting_last(self) -> bool:
        """Verify the drafts of the step before, draft for the next step, emit: vLLM's order. False without requests.

        A plan is executed by the end of one step and the beginning of the next one; its outcome has the times of both.
        """
        state, before = self.state, self._unverified
        drafted_slots = NO_TOKENS if before is None else before.slots
        batch = steps.schedule_batch(state.arrays, drafted_slots, self.now)
        if not batch.size:
            return False
        trimmed = before is not None and self._trim(before, batch)
        verified = steps.verify_batch(state.arrays, batch.size, drafted_slots, int(trimmed), self.now)
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
            self._report(before.view, done, before.drafts, verified.prefill_tokens, verified.waiting_requests)
        self.now = self.now + verified.host_seconds + verified.verify_seconds
        slots, drafts, view = NO_TOKENS, NO_DRAFTS, None
        state.engine["selection"] = False
        if verified.columns.shape[1]:
            # The first pass of a batch drafter computes the prompts of the batch that was just verified.
            computes_prompts = state.batch_drafter and not state.first_pass_every_step
            view = self._view(
                verified.columns,
                verified.next_prefill_tokens,
                verified.waiting_requests,
                verified.waiting_seconds,
                verified.admitted_requests,
                verified.prefill_tokens if computes_prompts else 0,
            )
            slots, drafts = state.view_slots, self._apply_gate_and_selection(self.controller.plan(view))
        drafter = steps.draft_and_emit(
            state.arrays, batch.size, slots, drafts.lengths, self._sources(drafts), drafts.padded_length, self.now
        )
        self.now += drafter.seconds
        self._unverified = None if view is None else _Unverified(view, slots, drafter, drafts)
        self._step += 1
        return True

    def _trim(self, before: _Unverified, batch: steps.ScheduledBatch) -> bool:
        """Shorten the drafts of a scheduled batch by the trim of their plan; returns whether it was called."""
        trim = before.drafts.trim
        if trim is None or batch.prefill_tokens <= before.view.prefill_tokens or not batch.drafts.any():
            return False
        slots, drafts = before.slots[batch.drafts > 0], self.state.requests["drafts"]
        kept = trim.trim(batch.drafts, batch.tokens)[batch.drafts > 0]
        drafts[slots] = np.minimum(drafts[slots], kept)
        self.state.engine["padded_length"] = 0  # a step with prompts replays no graph of padded drafts
        return True

    def _sources(self, drafts: _Drafts) -> IntArray:
        """(n,) `Source` of each draft."""
        return self.state.all_of_drafter[: drafts.lengths.size] if drafts.sources is None else drafts.sources

    def _apply_gate_and_selection(self, plan: StepPlan) -> _Drafts:
        """The drafts of a plan after its gate and its selection, which see the drafter's confidence."""
        state, correlation, lengths = self.state, self.state.confidence_correlation, plan.draft_lengths
        drafts = _Drafts(
            lengths,
            plan.sources,
            plan.padded_length if lengths.any() else 0,
            append_limits=plan.append_limits,
            trim=plan.trim,
        )
        state.engine["selection"] = False
        if correlation is None or (plan.selection is None and not state.calls_gate):
            return drafts
        of_drafter = np.where(self._sources(drafts) == Source.DRAFTER, lengths, 0)
        if not of_drafter.any():
            return drafts
        copied, kept = lengths - of_drafter, lengths
        confidence = draft_confidence(state, lengths, correlation)
        # What a look-up copies is a point mass.
        confidence[copied > 0] = 1.0
        if plan.gate is not None and state.calls_gate:
            proposed, to_verify = gated_drafts(plan.gate, of_drafter, confidence)
            lengths, kept = proposed + copied, to_verify + copied
        confidence = _up_to(lengths, confidence)
        if plan.selection is not None:
            state.engine["selection"] = True
            kept = np.minimum(plan.selection.select(lengths, confidence), kept)
        state.requests["selected"][state.view_slots] = kept
        append_limits = plan.append_limits
        if append_limits is not None:
            append_limits = np.where(kept == plan.draft_lengths, append_limits, 0)
        seen = confidence if state.calls_gate else None
        return drafts._replace(lengths=lengths, kept=kept, confidence=seen, append_limits=append_limits)

    def _report(
        self, view: StepView, done: steps.FinishedStep, drafts: _Drafts, prefill_tokens: int, waiting_requests: int
    ) -> None:
        """Pass the outcome of an executed plan to the controller.

        Args:
            view: of the plan.
            done: what it came to.
            drafts: of the plan.
            prefill_tokens: prompt tokens in the target's pass.
            waiting_requests: queued requests.
        """
        drafted, accepted, emitted, truncated, appended = done.judged
        proposed, confidence = drafted, drafts.confidence
        if drafts.kept is not None:
            # Of a request that was not in the step, and of a draft for which memory was short, no more counts.
            whole = (emitted > 0) & (drafted - appended == drafts.kept)
            proposed = np.where(whole, drafts.lengths + appended, drafted)
        if confidence is not None:
            own = proposed - appended
            confidence = _up_to(own, confidence)
            if appended.any():
                confidence = _with_copies(confidence, own, appended)
        self.controller.observe(
            StepOutcome(
                step=view.step,
                request_ids=view.request_ids,
                drafted=drafted,
                accepted=accepted,
                emitted=emitted,
                truncated=truncated.astype(np.bool_),
                proposed=proposed,
                confidence=confidence,
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
                sources=drafts.sources,
                appended=None if drafts.append_limits is None else appended,
            )
        )


def _with_copies(confidence: FloatArray, own: IntArray, appended: IntArray) -> FloatArray:
    """(n, longest draft) the confidence in `own` tokens of the drafter, and 1 in the appended ones, point masses."""
    width = max(confidence.shape[1], int((own + appended).max()))
    wider = np.pad(confidence, ((0, 0), (0, width - confidence.shape[1])), constant_values=np.nan)
    columns = np.arange(width)
    wider[(columns >= own[:, None]) & (columns < (own + appended)[:, None])] = 1.0
    return wider


def _up_to(lengths: IntArray, confidence: FloatArray) -> FloatArray:
    """(n, longest draft) the confidence in each draft's first tokens, `lengths` of them; NaN past these."""
    return np.where(np.arange(confidence.shape[1]) < lengths[:, None], confidence, np.nan)


def _contended_kv_share(state: Record) -> float:
    """`StepView.drafter_kv_share`."""
    return float(state["draft_kv_share"]) if state["kv_limited"] and state["gives_back"] else 0.0
