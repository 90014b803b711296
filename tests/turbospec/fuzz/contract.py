"""Fuzzes the contract: random views and outcomes, valid and broken, through the controller and every policy.

    python -m tests.turbospec.fuzz.contract --steps 1000000 --seed 1

Prints a line for each policy and exits with 1 if a property is broken. A run depends on the policy, its number of steps
and the seed alone.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.turbospec.fuzz.breakage import broken, in_other_types
from tests.turbospec.fuzz.hostile import HostilePolicy
from tests.turbospec.fuzz.steps import RandomEngine
from turbospec.controller import Controller, GuardConfig
from turbospec.interface import (
    MAX_COUNT,
    MAX_DRAFT_LENGTH,
    MAX_STEP_SECONDS,
    MAX_VALID_STEPS,
    MIN_STEP_SECONDS,
    LookupView,
    Phase,
    Policy,
    Source,
    StepOutcome,
    StepPlan,
    StepView,
)
from turbospec.observability import StepMetrics
from turbospec.observability.trace import LINE, TraceStep
from turbospec.policy import load_policy, shipped_policies
from turbospec.policy.adaptive import AdaptiveConfig

HOSTILE = "hostile"
"""Name of the policy that misbehaves."""
ADAPTIVE_SETTINGS: dict[str, dict[str, Any]] = {
    "adaptive with SLOs": {"tpot_slo_ms": 15.0, "ttft_slo_ms": 100.0},
    "adaptive with short drafts": {"max_draft": 3, "probe_share": 0.2},
}
HOSTILE_SHARE = 0.1
"""Calls of the hostile policy that go wrong."""
BROKEN_SHARE = 0.25
"""Views and outcomes that are broken while things go wrong."""
EPISODE, BAD_STEPS, COOLED_STEPS = 500, 350, 420
"""Steps of an episode; the first of them, in which things go wrong; and those after which no cooldown lasts."""
WARM_UP_SHARE = 0.3
"""Share of the steps after which memory must not grow any more."""
MAX_GROWTH = 48 * 2**20
"""Bytes by which a process may grow after the warm-up: kernels are loaded for rare cases."""
MAX_FINDINGS = 20


@dataclass(slots=True)
class Report:
    """What came out of fuzzing one policy."""

    policy: str
    steps: int = 0
    findings: list[str] = field(default_factory=list)
    """Broken properties and exceptions, as text."""
    exceptions: int = 0
    trips: int = 0
    host_faults: int = 0
    memory: int = 0
    """Bytes after the warm-up."""
    memory_at_end: int = 0
    seconds: float = 0.0

    def find(self, text: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(f"step {self.steps}: {text}")

    def __str__(self) -> str:
        return (
            f"{self.policy:28s} {self.steps:8d} steps {self.exceptions} exceptions {len(self.findings)} findings "
            f"{self.trips} trips {self.host_faults} host faults, memory {self.memory / 2**20:.0f} to "
            f"{self.memory_at_end / 2**20:.0f} MiB, {self.seconds:.0f} s"
        )


class Witness:
    """A policy that checks what another one is given, by rules of its own."""

    def __init__(self, policy: Policy, report: Report) -> None:
        self.policy = policy
        self.plans = self.outcomes = 0
        self._report = report
        self._sizes: dict[int, int] = {}

    def plan(self, view: StepView) -> StepPlan:
        self.plans += 1
        if (fault := fault_of_view(view)) is not None:
            self._report.find(f"the policy saw an invalid view: {fault}")
        return self.policy.plan(view)

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes += 1
        if (fault := fault_of_outcome(outcome)) is not None:
            self._report.find(f"the policy saw an invalid outcome: {fault}")
        self.policy.observe(outcome)


class TracedSteps:
    """A listener that makes the line of a trace for some of the steps."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.steps += 1
        if self.steps % 8 == 0:
            LINE.dump_json(TraceStep.from_step(view, plan, outcome, decision_seconds), warnings="error")


def fault_of_view(view: Any) -> str | None:
    """What a policy could not rely on in a view."""
    if type(view) is not StepView:
        return "no StepView"
    n = len(view.request_ids)
    for each in fields(view):
        if (fault := fault_of_type(each.name, str(each.type), getattr(view, each.name), n)) is not None:
            return fault
    if len(set(view.request_ids.tolist())) < n:
        return "duplicates"
    prefill = view.phase == Phase.PREFILL
    if not (0 <= view.max_draft <= MAX_DRAFT_LENGTH and view.step >= 0 and view.waiting_seconds >= 0):
        return "a number is out of range"
    if (view.draft_limits > view.max_draft).any() or view.draft_limits[prefill].any() or (view.phase > 2).any():
        return "limits"
    if view.lookup is not None:
        found, scores = view.lookup.lengths, view.lookup.scores
        if (found < 0).any() or (found > view.max_draft).any() or found[prefill].any():
            return "lengths of the look-up"
        if not ((scores >= 0) & (scores <= MAX_COUNT)).all():
            return "scores of the look-up"
    for array in (view.phase, view.context_tokens, view.emitted_tokens, view.drafter_lag_tokens, view.draft_limits):
        if (array < 0).any() or (array > MAX_COUNT).any():
            return "an array is out of range"
    return None


def fault_of_outcome(outcome: Any) -> str | None:
    """What a policy could not rely on in an outcome."""
    if type(outcome) is not StepOutcome:
        return "no StepOutcome"
    n = len(outcome.request_ids)
    for each in fields(outcome):
        rows = -1 if each.name == "draft_rows" else n
        if (fault := fault_of_type(each.name, str(each.type), getattr(outcome, each.name), rows)) is not None:
            return fault
    chain = (np.zeros(n), outcome.accepted, outcome.drafted, outcome.proposed, np.full(n, MAX_DRAFT_LENGTH))
    if any((low > high).any() for low, high in pairwise(chain)):
        return "draft tokens"
    if (outcome.emitted < 0).any() or (outcome.emitted > MAX_DRAFT_LENGTH + 1).any() or (outcome.draft_rows < 0).any():
        return "emitted or draft_rows"
    for each in ("draft_seconds", "verify_seconds", "step_seconds"):
        if not 0.0 <= getattr(outcome, each) <= MAX_STEP_SECONDS:
            return each
    if 0.0 < outcome.step_seconds < MIN_STEP_SECONDS or (outcome.reused_plan_steps == 0) != (
        outcome.reused_plan_seconds == 0
    ):
        return "seconds"
    if outcome.sources is not None and not np.isin(outcome.sources, list(Source)).all():
        return "sources"
    if outcome.appended is not None and not ((outcome.appended >= 0) & (outcome.appended <= outcome.drafted)).all():
        return "appended"
    if outcome.confidence is not None:
        columns = np.arange(outcome.confidence.shape[1])
        seen = outcome.confidence[columns < outcome.proposed[:, None]]
        if len(seen) != outcome.proposed.sum() or not ((seen >= 0.0) & (seen <= 1.01)).all():
            return "confidence"
    return None


def fault_of_type(name: str, kind: str, value: Any, n: int) -> str | None:
    """Whether a field has exactly the contract's type, and an array one row a request."""
    match kind:
        case "int" | "float" | "bool":
            right = type(value).__name__ == kind and (kind != "float" or math.isfinite(value))
            right = right and (kind != "int" or name == "step" or 0 <= value <= MAX_COUNT)
        case "IntArray" | "BoolArray":
            right = type(value) is np.ndarray and value.dtype == (np.int64 if kind == "IntArray" else np.bool_)
            right = right and value.ndim == 1 and value.flags.c_contiguous and n in (-1, len(value))
        case "IntArray | None":
            right = value is None or (type(value) is np.ndarray and value.dtype == np.int64 and value.shape == (n,))
        case "LookupView | None":
            right = value is None or (
                type(value) is LookupView
                and fault_of_type("lengths", "IntArray", value.lengths, n) is None
                and (value.scores.dtype, value.scores.shape) == (np.float64, (n,))
            )
        case "FloatArray | None":
            right = value is None or (value.dtype == np.float64 and value.ndim == 2 and len(value) == n)
        case _:
            right = type(value) is tuple and all(type(each) is int and 0 <= each <= MAX_DRAFT_LENGTH for each in value)
    return None if right else f"{name} is {value!r:.80}"


class Fuzz:
    """One policy in one controller, driven for some steps.

    Args:
        name: of a shipped policy, or `HOSTILE`.
        seed: of everything random.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.rng = np.random.default_rng([seed, *name.encode()])
        self.report = Report(name)
        self.engine = RandomEngine(self.rng)
        self.hostile = HostilePolicy(self.rng, HOSTILE_SHARE) if name == HOSTILE else None
        self.witness = Witness(self.hostile or build(name), self.report)
        guard = GuardConfig(max_decision_seconds=3600.0, cooldown_steps=3)
        self.controller = Controller(self.witness, guard=guard)
        self.controller.MAX_COOLDOWN_STEPS = 20  # type: ignore[misc]
        self.listeners = [StepMetrics(self.controller.stats), TracedSteps()]
        self.controller.listeners = list(self.listeners)
        self.pending: list[StepOutcome] = []

    def run(self, steps: int) -> Report:
        """Drive so many steps."""
        report, began = self.report, time.perf_counter()
        for step in range(steps):
            report.steps = step
            bad, cooled = step % EPISODE < BAD_STEPS, step % EPISODE > COOLED_STEPS
            if self.hostile is not None:
                self.hostile.share = HOSTILE_SHARE if bad else 0.0
            try:
                self._step(bad, cooled or self.hostile is None)
            except Exception:
                report.exceptions += 1
                report.find(traceback.format_exc(limit=-4))
            if step == int(WARM_UP_SHARE * steps):
                report.memory = resident_bytes()
        report.steps, report.seconds, report.memory_at_end = steps, time.perf_counter() - began, resident_bytes()
        stats = self.controller.stats
        report.trips, report.host_faults = stats.guard_trips, stats.host_faults
        if report.trips and self.hostile is None:
            report.find(f"{report.trips} faults of the policy, the last of either: {stats.last_fault}")
        if self.controller.listeners != self.listeners:
            report.find("a listener failed")
        if report.memory_at_end - report.memory > MAX_GROWTH:
            report.find(f"memory grew by {(report.memory_at_end - report.memory) / 2**20:.0f} MiB")
        return report

    def _step(self, bad: bool, cooled: bool) -> None:
        """One step of the engine.

        Args:
            bad: whether things go wrong.
            cooled: whether every valid view must get a plan of the policy.
        """
        rng, controller = self.rng, self.controller
        view = self.engine.view()
        if bad and rng.random() < 0.02:
            view = replace(view, step=int(rng.integers(0, 2**62)))
        if bad and rng.random() < BROKEN_SHARE:
            self._plan_broken(view)
            if rng.random() < 0.5:
                return
        given = in_other_types(view, rng) if bad and rng.random() < 0.1 else view
        plan = self._plan(view, given)
        if cooled and plan.reason.startswith("guard:"):
            self.report.find(f"the guard's fallback for a valid view: {controller.stats.last_fault}")
        lengths, outcome = plan.draft_lengths.copy(), self.engine.outcome(view, plan)
        if bad and rng.random() < 0.05:
            self._call_wrongly(plan)
        if bad and rng.random() < 0.03:
            self._plan(*(self.engine.view(),) * 2)  # the outcome of the step before comes later
        if bad and rng.random() < BROKEN_SHARE:
            self._observe_broken(outcome, view)
            return
        fate = rng.random() if bad else 1.0
        if fate < 0.05:
            return  # lost
        if fate < 0.15:
            self.pending.append(outcome)
            return
        controller.observe(in_other_types(outcome, rng) if bad and rng.random() < 0.1 else outcome)
        if fate < 0.2:
            controller.observe(outcome)  # twice
        if not np.array_equal(plan.draft_lengths, lengths):
            self.report.find("a plan was changed after it was returned")
        while self.pending and rng.random() < 0.6:
            controller.observe(self.pending.pop(rng.integers(len(self.pending))))
        del self.pending[:-100]

    def _plan(self, view: StepView, given: Any) -> StepPlan:
        """Plan a valid view, and check the plan."""
        controller, limits = self.controller, view.draft_limits.copy()
        faults = controller.stats.host_faults
        plan = controller.plan(given)
        for text in faults_of_plan(plan, view, limits):
            self.report.find(text)
        if controller.stats.host_faults > faults:
            self.report.find(f"a valid view was refused: {controller.stats.last_fault}")
        if self.hostile is None and not np.array_equal(given.draft_limits, limits):
            self.report.find("the host's draft_limits were changed")
        return plan

    def _plan_broken(self, view: StepView) -> None:
        """Plan a broken view: no drafts for as many requests as it has, and the policy is not asked."""
        controller, wrong = self.controller, broken(view, self.rng)
        plans, faults = self.witness.plans, controller.stats.host_faults
        plan = controller.plan(wrong)
        if controller.stats.host_faults != faults + 1 or self.witness.plans != plans:
            self.report.find(f"a broken view was planned: {difference(wrong, view)}")
        if not isinstance(plan, StepPlan) or plan.draft_lengths.ndim != 1 or plan.draft_lengths.any():
            self.report.find(f"a plan with drafts for a broken view: {difference(wrong, view)}")
        ids = getattr(wrong, "request_ids", None)
        if isinstance(ids, np.ndarray) and ids.ndim and plan.draft_lengths.shape != (len(ids),):
            self.report.find(f"a plan of shape {plan.draft_lengths.shape} for {len(ids)} requests")

    def _observe_broken(self, outcome: StepOutcome, view: StepView) -> None:
        """Report a broken outcome: the policy does not see it."""
        controller, wrong = self.controller, broken(outcome, self.rng)
        outcomes, faults = self.witness.outcomes, controller.stats.host_faults
        controller.observe(wrong)
        if controller.stats.host_faults != faults + 1 or self.witness.outcomes != outcomes:
            self.report.find(f"a broken outcome was observed: {difference(wrong, outcome)}")

    def _call_wrongly(self, plan: StepPlan) -> None:
        """Call the gate, the selection and the trim of a plan with nonsense."""
        rng = self.rng
        n = len(plan.draft_lengths)
        rows: Any = [np.array([n, -1]), np.zeros(2), np.zeros((2, 2), np.int64), None, "rows"][rng.integers(5)]
        seen: Any = [np.full(2, np.nan), np.full(2, 7.0), np.zeros(3), None, np.array(["a", "b"])][rng.integers(5)]
        if plan.gate is not None:
            keep, more = plan.gate.advance(rows, seen)
            if keep.dtype != np.bool_ or more.any() or (isinstance(rows, np.ndarray) and len(keep) != len(rows)):
                self.report.find(f"the gate answered {keep}, {more} to {rows!r}, {seen!r}")
        if plan.selection is not None and plan.selection.select(rows, seen) is not rows:
            self.report.find(f"the selection took {rows!r}, {seen!r}")
        tokens: Any = [-1, 10**30, 2.5, None, "3"][rng.integers(5)]
        if plan.trim is not None and plan.trim.trim(rows, tokens) is not rows:
            self.report.find(f"the trim took {rows!r}, {tokens!r}")


def faults_of_plan(plan: Any, view: StepView, limits: np.ndarray) -> Iterator[str]:
    """What a host could not rely on in a plan."""
    lengths = plan.draft_lengths
    if plan.sources is not None:
        if view.lookup is None or not np.isin(plan.sources, list(Source)).all():
            yield f"sources is {plan.sources!r}"
            return
        limits = np.where(plan.sources == Source.LOOKUP, view.lookup.lengths, limits)
    if plan.append_limits is not None:
        within = (plan.append_limits >= 0) & (plan.append_limits <= view.max_draft)
        if (
            view.lookup is None
            or not view.lookup.appends
            or plan.padded_length
            or len(within) != view.size
            or not within.all()
        ):
            yield f"append_limits is {plan.append_limits!r}"
    if type(lengths) is not np.ndarray or lengths.dtype != np.int64 or lengths.shape != limits.shape:
        yield f"draft_lengths is {lengths!r}"
    elif (lengths < 0).any() or (lengths > limits).any():
        yield f"draft_lengths {lengths} exceed {limits}"
    if type(plan.valid_steps) is not int or not 1 <= plan.valid_steps <= MAX_VALID_STEPS:
        yield f"valid_steps is {plan.valid_steps!r}"
    if type(plan.padded_length) is not int or plan.padded_length not in (0, *view.graph_lengths):
        yield f"padded_length is {plan.padded_length!r}"
    elif plan.padded_length and (lengths > plan.padded_length).any():
        yield "draft_lengths exceed padded_length"
    if type(plan.passes) is not int or plan.passes not in (0, *view.drafter_graph_lengths):
        yield f"passes is {plan.passes!r}"
    if type(plan.reason) is not str or len(plan.reason) > 1000:
        yield f"reason is {plan.reason!r:.80}"
    for value in (plan.predicted_tokens, plan.predicted_seconds):
        if type(value) is not float or not (math.isnan(value) or 0.0 <= value < math.inf):
            yield f"a prediction is {value!r}"
    if type(plan.probe) is not bool:
        yield f"probe is {plan.probe!r}"


def difference(wrong: Any, right: Any) -> str:
    """The fields that differ between a broken struct and the one that it was made from."""
    if type(wrong) is not type(right):
        return f"{wrong!r:.80}"
    names = [each.name for each in fields(right) if getattr(wrong, each.name) is not getattr(right, each.name)]
    return ", ".join(f"{name} = {getattr(wrong, name)!r:.200}" for name in names)


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


def all_policies() -> list[str]:
    """Names of the policies that can be driven by views alone. The simulator's `oracle` reads the simulated engine."""
    return [*sorted(shipped_policies()), *ADAPTIVE_SETTINGS, HOSTILE]


def build(name: str) -> Policy:
    """A policy by its name."""
    if name in ADAPTIVE_SETTINGS:
        return AdaptiveConfig(version=1, policy="adaptive", **ADAPTIVE_SETTINGS[name]).build(None, 0)
    return load_policy(name)


def fuzz(names: Sequence[str], steps: int, seed: int, say: Callable[[object], object] = print) -> list[Report]:
    """Fuzz policies one after the other.

    Args:
        names: of policies.
        steps: of each.
        seed: of everything random.
        say: is called with each report.
    """
    reports: list[Report] = []
    logging.getLogger("turbospec").setLevel(logging.CRITICAL)
    for name in names:
        report = Fuzz(name, seed).run(steps)
        reports.append(report)
        say(report)
        for finding in report.findings:
            say(finding)
    return reports


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if a property is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="over all policies together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", action="append", choices=all_policies(), help="repeat for several; default all")
    options = parser.parse_args(arguments)
    names = options.policy or all_policies()
    reports = fuzz(names, math.ceil(options.steps / len(names)), options.seed)
    total, exceptions = sum(report.steps for report in reports), sum(report.exceptions for report in reports)
    print(f"{total} steps, {exceptions} exceptions, {sum(len(report.findings) for report in reports)} findings")
    return int(any(report.findings for report in reports))


if __name__ == "__main__":
    sys.exit(main())
