"""The loop around a policy, view → plan → outcome, and the guard that keeps a faulty policy from hurting the engine."""

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
    FloatArray,
    IntArray,
    Policy,
    StepOutcome,
    StepPlan,
    StepView,
)
from turbospec.runtime.kernels import compiled
from turbospec.runtime.plans_in_flight import OpenPlans

log = logging.getLogger("turbospec")


class GuardConfig(BaseModel):
    """What a plan may cost, and what stands in for one that a policy failed to give."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fallback_draft_length: int = Field(default=0, ge=0, description="Draft length where the policy fails; 0 is off.")
    max_decision_seconds: float = Field(
        default=0.05, gt=0, description="Plans that take longer, two among eight, count as a fault of the policy."
    )
    cooldown_steps: int = Field(
        default=50, ge=0, description="Steps on the fallback after a fault; doubles with each fault that follows."
    )


class StepListener(Protocol):
    """Sees every finished step, as traces, metrics and the benchmark's records do. One that raises is dropped."""

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None: ...


@dataclass(slots=True)
class ControllerStats:
    steps: int = 0
    decision_seconds: float = 0.0
    """Time spent in plan, gate and observe."""
    guard_trips: int = 0
    last_fault: str = ""


@compiled
def _within(lengths: IntArray, limits: IntArray) -> bool:
    for i in range(len(lengths)):  # noqa: SIM110 numba compiles a loop better than a generator
        if lengths[i] < 0 or lengths[i] > limits[i]:
            return False
    return True


class _GuardedGate:
    """A policy's gate that cannot harm the engine, and whose time counts as the controller's."""

    def __init__(self, gate: DraftGate, trip: Callable[[str, Exception], None]) -> None:
        self._gate = gate
        self._trip = trip
        self.seconds = 0.0

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        began = time.perf_counter()
        try:
            keep, more = self._gate.advance(rows, confidence)
            for answer in (keep, more):
                if answer.shape != rows.shape or answer.dtype != np.bool_:
                    raise ValueError(f"answered with {answer.dtype} of shape {answer.shape}, not booleans {rows.shape}")
        except Exception as error:
            self._trip("gate", error)
            keep, more = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        self.seconds += time.perf_counter() - began
        return keep, more


class Controller:
    """Drives one policy for one engine and never lets it harm the engine.

    A policy that raises, returns a plan of the wrong shape or takes too long costs its plan: the step runs with the
    guard's fallback, the fault is counted, and it is logged once a burst. Not thread-safe; one engine, one controller.
    """

    MAX_COOLDOWN_STEPS = 10_000
    SLOW_WITHIN = 8
    """Plans among which a second slow one is a fault: a policy may decide for a few steps at a time."""

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
        self._slow_plan = -self.SLOW_WITHIN
        """Number of the last plan that took too long."""
        self._open = OpenPlans[tuple[StepView, StepPlan, float]]()

    def plan(self, view: StepView) -> StepPlan:
        """Choose the step's draft lengths; never raises."""
        began = time.perf_counter()
        plan = None
        if self.stats.steps >= self._cooldown_until:
            try:
                plan = self._checked(self.policy.plan(view), view)
            except Exception as error:
                self._trip("plan", error)
        if plan is None:
            plan = self._fallback(view)
        seconds = time.perf_counter() - began
        self._plans += 1
        if seconds > self.guard.max_decision_seconds:
            # One slow plan is as likely a thread that the system put aside.
            if self._plans - self._slow_plan <= self.SLOW_WITHIN:
                self._trip("plan", TimeoutError(f"took {seconds * 1e3:.1f} ms"))
            self._slow_plan = self._plans
        self._open.put(view.step, (view, plan, seconds))
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Let the policy and the listeners learn from a finished step; never raises."""
        view, plan, planning = self._open.pop(outcome.step) or (None, None, 0.0)
        began = time.perf_counter()
        try:
            self.policy.observe(outcome)
        except Exception as error:
            self._trip("observe", error)
        decision_seconds = planning + time.perf_counter() - began
        if plan is not None and isinstance(plan.gate, _GuardedGate):
            decision_seconds += plan.gate.seconds
        self.stats.steps += 1
        self.stats.decision_seconds += decision_seconds
        if view is None or plan is None:
            return
        for listener in self.listeners:
            try:
                listener.on_step(view, plan, outcome, decision_seconds)
            except Exception:
                log.exception("%s failed and is left out from now on", type(listener).__name__)
                self.listeners = [other for other in self.listeners if other is not listener]

    def _checked(self, plan: StepPlan, view: StepView) -> StepPlan:
        lengths = plan.draft_lengths
        if type(lengths) is not np.ndarray:
            lengths = plan.draft_lengths = np.asarray(lengths)
        if lengths.shape != (view.size,) or lengths.dtype.kind not in "iu":
            raise ValueError(f"draft_lengths is {lengths.dtype} of shape {lengths.shape}, not integers ({view.size},)")
        if not _within(lengths, view.draft_limits):
            raise ValueError("draft_lengths outside 0 and the view's draft_limits")
        if plan.gate is not None:
            plan.gate = _GuardedGate(plan.gate, self._trip)
        return plan

    def _fallback(self, view: StepView) -> StepPlan:
        lengths = np.minimum(self.guard.fallback_draft_length, view.draft_limits)
        return StepPlan(lengths, reason="guard: the policy failed, fallback")

    def _trip(self, where: str, error: Exception) -> None:
        self.stats.guard_trips += 1
        self.stats.last_fault = f"{where}: {type(error).__name__}: {error}"
        healthy_steps = self.stats.steps - self._cooldown_until
        if healthy_steps < 0:
            return  # one burst, one cooldown
        if healthy_steps > self.MAX_COOLDOWN_STEPS:
            self._cooldown = self.guard.cooldown_steps
        log.warning("the policy failed in %s; on the fallback for %d steps", self.stats.last_fault, self._cooldown)
        self._cooldown_until = self.stats.steps + self._cooldown
        self._cooldown = min(max(1, self._cooldown * 2), self.MAX_COOLDOWN_STEPS)
