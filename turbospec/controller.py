"""The control loop, view → plan → outcome, and its guard, which falls back to K = 0 if the policy fails.

`Controller` calls a policy; the policy chooses K. `turbospec.policy.adaptive.policy` is TurboSpec's own policy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from turbospec.interface import (
    BoolArray,
    DraftGate,
    DraftSelection,
    FloatArray,
    IntArray,
    Policy,
    StepOutcome,
    StepPlan,
    StepView,
)
from turbospec.runtime.kernels import compiled
from turbospec.runtime.plan_reuse import plan_again
from turbospec.runtime.plans_in_flight import PlansInFlight

log = logging.getLogger("turbospec")


class GuardConfig(BaseModel):
    """Limits on a policy, and the fallback for steps in which the policy fails."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fallback_draft_length: int = Field(
        default=0, ge=0, description="Draft length of every request where the policy fails; 0 is off."
    )
    max_decision_seconds: float = Field(
        default=0.05, gt=0, description="Longest time for one plan. Two slower plans among eight count as a fault."
    )
    cooldown_steps: int = Field(
        default=50, ge=0, description="Steps that use the fallback after a fault; doubles with each further fault."
    )


class StepListener(Protocol):
    """Receives every finished step: decision traces, metrics, benchmark records. A listener that raises is removed."""

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        """Take in one step; `decision_seconds` is the time spent in plan, gate and observe."""
        ...


@dataclass(slots=True)
class ControllerStats:
    """Totals since the controller was made."""

    steps: int = 0
    """Steps observed."""
    decision_seconds: float = 0.0
    """Time spent in plan, gate, selection and observe."""
    guard_trips: int = 0
    """Faults of the policy, of its gate or selection, or of the host."""
    last_fault: str = ""
    """Where the last fault occurred, and the exception."""


@compiled
def _within(lengths: IntArray, limits: IntArray) -> bool:
    for i in range(len(lengths)):  # noqa: SIM110 numba compiles a loop better than a generator
        if lengths[i] < 0 or lengths[i] > limits[i]:
            return False
    return True


class _GuardedGate:
    """Wraps a policy's gate: a gate that fails ends all drafts, and its time counts as decision time."""

    def __init__(self, gate: DraftGate, trip: Callable[[str, Exception], None]) -> None:
        self._gate = gate
        self._trip = trip
        self.seconds = 0.0
        """Time spent in the gate."""

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        began = time.perf_counter()
        try:
            keep, more = self._gate.advance(rows, confidence)
            for answer in (keep, more):
                if answer.shape != rows.shape or answer.dtype != np.bool_:
                    raise ValueError(f"returned {answer.dtype} of shape {answer.shape}, not bool of shape {rows.shape}")
        except Exception as error:
            self._trip("gate", error)
            keep, more = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        self.seconds += time.perf_counter() - began
        return keep, more

    def for_next_step(self, limits: IntArray) -> _GuardedGate:
        return _GuardedGate(self._gate.for_next_step(limits), self._trip)


class _GuardedSelection:
    """Wraps a policy's selection: one that fails verifies whole drafts, and its time counts as decision time."""

    def __init__(self, selection: DraftSelection, trip: Callable[[str, Exception], None]) -> None:
        self._selection = selection
        self._trip = trip
        self.seconds = 0.0
        """Time spent in the selection."""

    def select(self, proposed: IntArray, confidence: FloatArray) -> IntArray:
        began = time.perf_counter()
        try:
            kept = self._selection.select(proposed, confidence)
            if kept.shape != proposed.shape or kept.dtype.kind not in "iu":
                raise ValueError(f"returned {kept.dtype} of shape {kept.shape}, not integers of shape {proposed.shape}")
            if not _within(kept, proposed):
                raise ValueError("must return 0 to `proposed` tokens for each row")
        except Exception as error:
            self._trip("selection", error)
            kept = proposed
        self.seconds += time.perf_counter() - began
        return kept


class Controller:
    """Drives one policy for one engine. A fault of the policy never reaches the engine.

    If the policy raises, returns a plan of the wrong shape or is repeatedly too slow, the step runs on the guard's
    fallback, and so do the next `GuardConfig.cooldown_steps` steps. Every fault is counted; a burst is logged once.
    Not thread-safe; each engine needs its own controller.

    Args:
        policy: chooses the draft lengths.
        guard: limits and fallback; None for the defaults.
        listeners: called after every step, in this order.
    """

    MAX_COOLDOWN_STEPS = 10_000
    SLOW_PLAN_WINDOW = 8
    """Plans within which a second slow plan is a fault. More than two, because a policy may reuse a plan for a few
    steps, and then only every few plans are computed."""

    def __init__(
        self, policy: Policy, *, guard: GuardConfig | None = None, listeners: Sequence[StepListener] = ()
    ) -> None:
        self.policy = policy
        self.guard = guard or GuardConfig()
        self.listeners = list(listeners)
        self.stats = ControllerStats()
        self._cooldown_until = 0
        self._cooldown = self.guard.cooldown_steps
        self._plans = 0
        self._slow_plan = -self.SLOW_PLAN_WINDOW
        """Number of the last slow plan."""
        self._in_flight = PlansInFlight[tuple[StepView, StepPlan, float, bool]]()
        """View, plan, seconds to plan, and whether the policy learns from the step."""
        self._reusable: tuple[StepPlan, StepView] | None = None
        """The last plan and its view, if the policy allows its reuse."""
        self._reuse_ends = 0
        """First step that may no longer reuse the last plan."""

    def plan(self, view: StepView) -> StepPlan:
        """Choose the step's draft lengths; never raises."""
        began = time.perf_counter()
        plan = None
        if self.stats.steps >= self._cooldown_until:
            try:
                plan = self._plan_again(view) or self._plan_anew(view)
            except Exception as error:
                self._trip("plan", error)
        # While the last plan may be reused, the policy would attribute a fallback step to that plan.
        taught = plan is not None or view.step >= self._reuse_ends
        if plan is None:
            plan = self._fallback(view)
        seconds = time.perf_counter() - began
        self._plans += 1
        if seconds > self.guard.max_decision_seconds:
            # A single slow plan may only mean that the operating system preempted this thread.
            if self._plans - self._slow_plan <= self.SLOW_PLAN_WINDOW:
                self._trip("plan", TimeoutError(f"took {seconds * 1e3:.1f} ms"))
            self._slow_plan = self._plans
        self._in_flight.put(view.step, (view, plan, seconds, taught))
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Pass a finished step to the policy and the listeners; never raises."""
        view, plan, planning, taught = self._in_flight.pop(outcome.step) or (None, None, 0.0, True)
        began = time.perf_counter()
        if taught:
            try:
                self.policy.observe(outcome)
            except Exception as error:
                self._trip("observe", error)
        decision_seconds = planning + time.perf_counter() - began
        if plan is not None and isinstance(plan.gate, _GuardedGate):
            decision_seconds += plan.gate.seconds
        if plan is not None and isinstance(plan.selection, _GuardedSelection):
            decision_seconds += plan.selection.seconds
        self.stats.steps += 1
        self.stats.decision_seconds += decision_seconds
        if view is None or plan is None:
            return
        for listener in self.listeners:
            try:
                listener.on_step(view, plan, outcome, decision_seconds)
            except Exception:
                log.exception("listener %s failed and is removed", type(listener).__name__)
                self.listeners = [other for other in self.listeners if other is not listener]

    def _plan_again(self, view: StepView) -> StepPlan | None:
        return None if self._reusable is None else plan_again(*self._reusable, view)

    def _plan_anew(self, view: StepView) -> StepPlan:
        self._reusable = None
        plan = self._checked(self.policy.plan(view), view)
        if plan.valid_steps > 1:
            self._reusable = plan, view
            self._reuse_ends = view.step + plan.valid_steps
        return plan

    def _checked(self, plan: StepPlan, view: StepView) -> StepPlan:
        lengths = plan.draft_lengths
        if type(lengths) is not np.ndarray:
            lengths = plan.draft_lengths = np.asarray(lengths)
        if lengths.shape != (view.size,) or lengths.dtype.kind not in "iu":
            raise ValueError(
                f"draft_lengths is {lengths.dtype} of shape {lengths.shape}, not integers of shape ({view.size},)"
            )
        if not _within(lengths, view.draft_limits):
            raise ValueError("draft_lengths must lie between 0 and the view's draft_limits")
        if plan.padded_length and plan.padded_length not in view.graph_lengths:
            raise ValueError(f"padded_length is {plan.padded_length}, not one of the view's {view.graph_lengths}")
        if plan.padded_length and not _within(lengths, np.full(view.size, plan.padded_length)):
            raise ValueError(f"draft_lengths must not exceed padded_length {plan.padded_length}")
        if plan.gate is not None:
            plan.gate = _GuardedGate(plan.gate, self._trip)
        if plan.selection is not None:
            plan.selection = _GuardedSelection(plan.selection, self._trip)
        return plan

    def _fallback(self, view: StepView) -> StepPlan:
        lengths = np.minimum(self.guard.fallback_draft_length, view.draft_limits)
        return StepPlan(lengths, reason=f"guard: policy failed, fallback to K = {self.guard.fallback_draft_length}")

    def _trip(self, where: str, error: Exception) -> None:
        self._reusable = None
        self.stats.guard_trips += 1
        self.stats.last_fault = f"{where}: {type(error).__name__}: {error}"
        healthy_steps = self.stats.steps - self._cooldown_until
        if healthy_steps < 0:
            return  # the same burst: neither logged again nor a longer cooldown
        if healthy_steps > self.MAX_COOLDOWN_STEPS:
            self._cooldown = self.guard.cooldown_steps
        log.warning("policy failed in %s; using the fallback for %d steps", self.stats.last_fault, self._cooldown)
        self._cooldown_until = self.stats.steps + self._cooldown
        self._cooldown = min(max(1, self._cooldown * 2), self.MAX_COOLDOWN_STEPS)
