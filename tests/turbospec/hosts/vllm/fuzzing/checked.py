"""A controller that checks what the loop tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.turbospec.hosts.vllm.fuzzing.worker import Dispatched
from turbospec.controller import Controller
from turbospec.hosts.vllm.scheduler.views import EngineLimits
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView
from turbospec.models.logistic import MAX_CLASSES
from turbospec.observability.trace import LINE, TraceStep

REMEMBERED = 8
"""Plans, and steps, of which the last are looked up."""


class Checked:
    """
    Args:
        controller: the one that plans.
        limits: of the engine.
        graphs: of the target, as workers report them.
        note: called with what is wrong.
    """

    def __init__(
        self,
        controller: Controller,
        limits: EngineLimits,
        graphs: tuple[tuple[int, int], ...],
        note: Callable[[str], None],
    ) -> None:
        self.controller = controller
        self._limits = limits
        self._graphs = dict(graphs)
        self._note = note
        self._newest = -1
        self._open: dict[int, tuple[StepView, StepPlan]] = {}
        self._ran: dict[int, Dispatched] = {}

    def ran(self, number: int, step: Dispatched) -> None:
        """Note a step that has run, by the loop's number."""
        self._ran[number] = step
        _keep_last(self._ran)

    def plan(self, view: StepView) -> StepPlan:
        self._check_view(view)
        plan = self.controller.plan(view)
        self._open[view.step] = view, plan
        _keep_last(self._open)
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        view, plan = self._open.pop(outcome.step, (None, None))
        if view is None or plan is None:
            self._note(f"outcome of step {outcome.step}, which is not open")
        else:
            self._check_outcome(view, plan, outcome)
            self._check_truth(plan, outcome)
            line = LINE.dump_json(TraceStep.from_step(view, plan, outcome, 0.0))
            self._expect(b"NaN" not in line and b"Infinity" not in line, "the trace's line is no JSON")
        self.controller.observe(outcome)

    def _expect(self, holds: bool | np.bool_, what: str) -> None:
        if not holds:
            self._note(what)

    def _check_view(self, view: StepView) -> None:
        expect, limits = self._expect, self._limits
        columns = (
            view.request_ids, view.phase, view.context_tokens, view.emitted_tokens, view.tokens_left,
            view.drafter_lag_tokens, view.class_ids, view.draft_limits,
        )  # fmt: skip
        expect(all(each.shape == (view.size,) and each.dtype == np.int64 for each in columns), "a view's arrays")
        expect(view.size > 0, "a view without requests")
        expect(view.step >= self._newest, f"step {view.step} after {self._newest}")
        self._newest = view.step
        expect(len(set(view.request_ids.tolist())) == view.size, "a request twice in a view")
        expect(bool(np.isin(view.phase, [int(phase) for phase in Phase]).all()), "an unknown phase")
        most = np.minimum(np.maximum(view.tokens_left - 1, 0), limits.max_draft)
        expect((view.draft_limits >= 0).all() and (view.draft_limits <= most).all(), f"limits {view.draft_limits}")
        expect(not view.draft_limits[view.phase == Phase.PREFILL].any(), "a request in prefill may draft")
        if view.lookup is not None:
            found, scores = view.lookup.lengths, view.lookup.scores
            expect((found >= 0).all() and (found <= most).all(), f"found {found}")
            expect(not found[view.phase == Phase.PREFILL].any(), "a look-up in prefill")
            expect(bool((scores[found > 0] > 0).all()) and not scores[found == 0].any(), f"scores {scores} of {found}")
        expect((view.tokens_left >= 0).all(), f"tokens left: {view.tokens_left.min()}")
        expect(((view.emitted_tokens > 0) | (view.phase == Phase.PREFILL)).all(), "emitted tokens")
        lag = view.drafter_lag_tokens
        expect((lag >= 0).all() and (lag <= view.context_tokens).all(), f"a lag of {lag} in {view.context_tokens}")
        expect((view.class_ids >= 0).all() and (view.class_ids < MAX_CLASSES).all(), "classes")
        expect(all(self._graphs.get(each, 0) >= view.size for each in view.graph_lengths), "a length without graph")
        expect(0 <= view.admitted_requests <= view.waiting_requests, "admitted requests")
        expect(np.isfinite(view.waiting_seconds) and view.waiting_seconds >= 0, "waiting time")
        expect(view.prefill_tokens >= 0 and view.drafter_prefill_tokens >= 0, "prefill tokens")

    def _check_outcome(self, view: StepView, plan: StepPlan, outcome: StepOutcome) -> None:
        expect = self._expect
        drafted, accepted, emitted = outcome.drafted, outcome.accepted, outcome.emitted
        columns = (outcome.request_ids, drafted, accepted, emitted, outcome.truncated, outcome.proposed)
        expect(all(each.shape == (view.size,) for each in columns), "an outcome's arrays")
        expect(np.array_equal(outcome.request_ids, view.request_ids), "an outcome of other requests")
        expect((accepted >= 0).all() and (accepted <= drafted).all(), "accepted more than was drafted")
        expect((drafted <= outcome.proposed).all(), "drafted more than was proposed")
        expect(np.array_equal(outcome.sources, plan.sources), "sources of another plan")  # pyright: ignore
        expect((drafted <= plan.draft_lengths).all(), f"drafted {drafted}, planned {plan.draft_lengths}")
        expect((accepted <= emitted).all(), "accepted more than was emitted")
        seconds = (outcome.draft_seconds, outcome.verify_seconds, outcome.step_seconds, outcome.reused_plan_seconds)
        expect(all(np.isfinite(each) and each >= 0.0 for each in seconds), f"seconds {seconds}")
        expect(outcome.tokens_batched > 0 and outcome.context_tokens > 0, "tokens of the target's pass")
        reused_tokens = outcome.reused_plan_tokens + outcome.reused_plan_prefill_tokens
        expect(0 <= outcome.reused_plan_steps <= reused_tokens, "reuse")

    def _check_truth(self, plan: StepPlan, outcome: StepOutcome) -> None:
        """Compare with what the step after the plan's did."""
        if outcome.step + 1 not in self._ran:
            self._note(f"the step after {outcome.step} has not run")
            return
        step = self._ran[outcome.step + 1]
        sent = step.sent()
        for row, number in enumerate(outcome.request_ids.tolist()):
            name = step.numbers.get(number)
            if name is None:  # its id, which the loop knows it by, may have been used again
                self._expect(not outcome.drafted[row], f"drafts of {number}, which did not run")
                continue
            emitted = int(outcome.emitted[row])
            self._expect(emitted in (0, sent.get(name, 0)), f"{name} was sent {sent.get(name)}, reported are {emitted}")
            verified, accepted = step.verified.get(name, (0, 0)) if emitted else (0, 0)
            planned = int(plan.draft_lengths[row])
            kept = min(verified, planned, accepted, emitted)
            # A grammar may have ruled out the next token of the draft.
            most = verified + 1 if step.requests[name].use_structured_output else verified
            possible = {(min(length, planned), kept) for length in (verified, most)}
            found = int(outcome.drafted[row]), int(outcome.accepted[row])
            if found not in possible and not (emitted == 0 and found[1] == 0):
                self._note(f"{name} verified and accepted {possible}, reported are {found}")


def _keep_last(entries: dict[int, Any]) -> None:
    while len(entries) > REMEMBERED:
        del entries[next(iter(entries))]
