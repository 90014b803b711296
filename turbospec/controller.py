"""The control loop, view → plan → outcome, and its guard, which falls back to K = 0 if the policy fails.

`Controller` calls a policy; the policy chooses K. `turbospec.policy.adaptive.policy` is TurboSpec's own policy.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import index
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from turbospec.interface import MAX_DRAFT_LENGTH, IntArray, Policy, StepOutcome, StepPlan, StepView
from turbospec.runtime import guarded_gate, outcome_check, plan_check, view_check
from turbospec.runtime.contract_types import HostFault
from turbospec.runtime.guarded_gate import Guarded, GuardedGate, GuardedSelection, GuardedTrim
from turbospec.runtime.outcome_check import checked_outcome
from turbospec.runtime.plan_check import checked_plan
from turbospec.runtime.plan_reuse import plan_again
from turbospec.runtime.plans_in_flight import PlansInFlight
from turbospec.runtime.view_check import checked_view

log = logging.getLogger("turbospec")

MAX_COOLDOWN_STEPS = 10_000
MAX_DECISION_SECONDS = 3600.0
"""Largest setting of that name: as good as no limit."""
MAX_FAULT_CHARACTERS = 400
MAX_ROWS = 2**24
"""Most rows of the plan for an invalid view."""


class GuardConfig(BaseModel):
    """Limits on a policy, and the fallback for steps in which the policy fails."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fallback_draft_length: int = Field(
        default=0,
        ge=0,
        le=MAX_DRAFT_LENGTH,
        description="Draft length of every request where the policy fails; 0 is off.",
    )
    max_decision_seconds: float = Field(
        default=0.05,
        ge=1e-3,
        le=MAX_DECISION_SECONDS,
        allow_inf_nan=False,
        description="Longest time for one plan. A second slower plan within the next eight is a fault.",
    )
    cooldown_steps: int = Field(
        default=50,
        ge=0,
        le=MAX_COOLDOWN_STEPS,
        description="Steps that use the fallback after a fault; doubles with each further fault.",
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
    """Time spent in plan, gate, selection, trim and observe; also in plans that the host replaced."""
    guard_trips: int = 0
    """Faults of the policy, of its gate, selection or trim."""
    host_faults: int = 0
    """Views, outcomes and confidences of the host that broke the contract. The policy saw none of them."""
    last_fault: str = ""
    """Where the last fault of either occurred, and the exception."""
    active: bool = True
    """Whether the host calls the controller; cleared where it cannot start, or gives up after repeated faults."""


INVALID = ()
"""Of a step whose view was invalid, in place of its plan."""


class Controller:
    """Drives one policy for one engine. A fault of either never reaches the other.

    If the policy raises, returns an invalid plan or is repeatedly too slow, the step runs on the guard's fallback, and
    so do the next `GuardConfig.cooldown_steps` steps. A view that breaks the contract gets a plan without drafts; an
    outcome that breaks it, or has no planned step, is dropped. Every fault is counted; a burst is logged once.
    Not thread-safe; each engine needs its own controller.

    Args:
        policy: chooses the draft lengths.
        guard: limits and fallback; None for the defaults.
        listeners: called after every step, in this order.
    """

    MAX_COOLDOWN_STEPS = MAX_COOLDOWN_STEPS
    SLOW_PLAN_WINDOW = 8
    """Plans within which a second slow plan is a fault. More than two, because a policy may reuse a plan for a few
    steps, and then only every few plans are computed."""
    HOST_FAULT_WINDOW = 100
    """Plans without a fault of the host after which the next one is logged again."""

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
        self._host_fault_plan = -math.inf
        """Number of the plan before which the host last broke the contract."""
        self._in_flight = PlansInFlight[tuple[StepView, StepPlan, float, bool] | tuple[()]]()
        """View, plan, seconds to plan, and whether the policy learns from the step; or `INVALID`."""
        self._reusable: tuple[StepPlan, StepView] | None = None
        """The last plan and its view, if the policy allows its reuse."""
        self._reuse_ends = 0
        """First step that may no longer reuse the last plan."""
        compile_checks()

    def plan(self, view: StepView) -> StepPlan:
        """Choose the step's draft lengths; never raises. The plan has sources wherever the view has a look-up."""
        began = time.perf_counter()
        self._plans += 1
        try:
            view = checked_view(view)
        except Exception as error:
            self._report_host("view", error)
            with suppress(Exception):  # the step's number may be what is invalid
                if 0 <= (step := index(view.step)) < 2**63:
                    self._in_flight.put(step, INVALID)
            return StepPlan(np.zeros(_rows_of(view), np.int64), reason="guard: invalid view, no drafts")
        plan, limits = None, view.draft_limits
        if self.stats.steps >= self._cooldown_until:
            try:
                if self._reusable is not None:
                    plan = plan_again(*self._reusable, view)
                if plan is None:
                    limits = limits.copy()  # the policy may change the view's
                    plan = self._plan_anew(view, limits)
            except Exception as error:
                with suppress(ValueError):  # they may be read-only
                    view.draft_limits[:] = limits  # the host relies on them
                self._trip("plan", error)
        # While the last plan may be reused, the policy would attribute a fallback step to that plan.
        taught = plan is not None or view.step >= self._reuse_ends
        if plan is None:
            plan = self._fallback(limits)
        if plan.sources is None and view.lookup is not None:
            plan.sources = np.zeros(view.size, np.int64)  # of the drafter
        seconds = time.perf_counter() - began
        self.stats.decision_seconds += seconds
        if seconds > self.guard.max_decision_seconds:
            # A single slow plan may only mean that the operating system preempted this thread.
            if self._plans - self._slow_plan <= self.SLOW_PLAN_WINDOW:
                self._trip("plan", TimeoutError(f"took {seconds * 1e3:.1f} ms"))
            self._slow_plan = self._plans
        self._in_flight.put(view.step, (view, plan, seconds, taught))
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Pass a finished step to the policy and the listeners; never raises."""
        planned = None
        began = time.perf_counter()
        try:
            planned = self._in_flight.pop(outcome.step)
            if planned is None:
                raise HostFault("no planned step of this number waits for an outcome")
            if not planned:  # `INVALID`, which was reported
                self.stats.steps += 1
                return
            view, plan, planning, taught = planned
            outcome = checked_outcome(outcome, view)
        except Exception as error:
            self._report_host("outcome", error)
            if planned is not None:
                self.stats.steps += 1
            return
        if taught:
            try:
                self.policy.observe(outcome)
            except Exception as error:
                self._trip("observe", error)
        since_plan = time.perf_counter() - began
        for part in (plan.gate, plan.selection, plan.trim):
            if isinstance(part, Guarded):
                since_plan += part.seconds
        self.stats.steps += 1
        self.stats.decision_seconds += since_plan
        for listener in self.listeners:
            try:
                listener.on_step(view, plan, outcome, planning + since_plan)
            except Exception:
                with suppress(Exception):
                    log.exception("listener %s failed and is removed", type(listener).__name__)
                self.listeners = [other for other in self.listeners if other is not listener]

    def _plan_anew(self, view: StepView, limits: IntArray) -> StepPlan:
        """The policy's plan, guarded; `limits` is a copy of the view's, and becomes the plan's array."""
        self._reusable = None
        plan = checked_plan(self.policy.plan(view), view, limits)
        if plan.gate is not None:
            plan.gate = GuardedGate(plan.gate, view.size, self._report)
        if plan.selection is not None:
            plan.selection = GuardedSelection(plan.selection, view.size, self._report)
        if plan.trim is not None:
            plan.trim = GuardedTrim(plan.trim, view.size, self._report)
        if plan.valid_steps > 1:
            self._reusable = plan, view
        self._reuse_ends = view.step + plan.valid_steps
        return plan

    def _fallback(self, limits: IntArray) -> StepPlan:
        lengths = np.minimum(self.guard.fallback_draft_length, limits)
        return StepPlan(lengths, reason=f"guard: policy failed, fallback to K = {self.guard.fallback_draft_length}")

    def _report(self, where: str, error: Exception) -> None:
        """Count a fault in a gate, a selection or a trim, which hosts call."""
        if isinstance(error, HostFault):
            self._report_host(where, error)
        else:
            self._trip(where, error)

    def _report_host(self, where: str, error: Exception) -> None:
        """Count a fault of the host. It says nothing about the policy, which goes on."""
        self.stats.host_faults += 1
        self.stats.last_fault = _described(where, error)
        if self._plans - self._host_fault_plan > self.HOST_FAULT_WINDOW:
            _warn("the engine broke the contract in %s; the policy does not see it", self.stats.last_fault)
        self._host_fault_plan = self._plans

    def _trip(self, where: str, error: Exception) -> None:
        self._reusable = None
        self.stats.guard_trips += 1
        self.stats.last_fault = _described(where, error)
        healthy_steps = self.stats.steps - self._cooldown_until
        if healthy_steps < 0:
            return  # the same burst: neither logged again nor a longer cooldown
        if healthy_steps > self.MAX_COOLDOWN_STEPS:
            self._cooldown = self.guard.cooldown_steps
        _warn("policy failed in %s; using the fallback for %d steps", self.stats.last_fault, self._cooldown)
        self._cooldown_until = self.stats.steps + self._cooldown
        self._cooldown = min(max(1, self._cooldown * 2), self.MAX_COOLDOWN_STEPS)


@cache
def compile_checks() -> None:
    """Compile the guard's checks, or load them from the cache, so that the first step does not wait for them."""
    for checks in (view_check, plan_check, guarded_gate, outcome_check):
        checks.compile_check()


def _rows_of(view: object) -> int:
    """Requests of an invalid view, as far as it says so."""
    for name in ("request_ids", "draft_limits", "phase"):
        with suppress(Exception):
            rows = len(getattr(view, name))
            if rows <= MAX_ROWS:
                return rows
    return 0


def _described(where: str, error: Exception) -> str:
    """Where a fault occurred, and the exception, as one line."""
    try:
        text = f"{where}: {type(error).__name__}: {error}"
    except Exception:  # the exception's own text fails
        text = f"{where}: {type(error).__name__}, which has no text"
    printable = "".join(each if each.isprintable() else " " for each in text[:MAX_FAULT_CHARACTERS])
    return " ".join(printable.split())


def _warn(message: str, *arguments: object) -> None:
    with suppress(Exception):  # a handler of the host may raise
        log.warning(message, *arguments)
