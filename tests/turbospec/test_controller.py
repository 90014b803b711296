"""The guard: whatever a policy does, the engine gets a plan that it can run, and no exception."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospec.controller import Controller, GuardConfig
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView

LIMITS = (0, 4, 7)


def a_view(step: int = 0, limits: tuple[int, ...] = LIMITS) -> StepView:
    n = len(limits)
    return StepView(
        step=step,
        now=step * 0.01,
        request_ids=np.arange(n),
        phase=np.full(n, Phase.DECODE, np.int64),
        context_tokens=np.full(n, 40),
        emitted_tokens=np.full(n, 3),
        tokens_left=np.full(n, 60),
        drafter_lag_tokens=np.zeros(n, np.int64),
        class_ids=np.zeros(n, np.int64),
        draft_limits=np.array(limits, np.int64),
        max_draft=7,
    )


def an_outcome(view: StepView, plan: StepPlan) -> StepOutcome:
    drafted = np.asarray(plan.draft_lengths)
    return StepOutcome(
        step=view.step,
        request_ids=view.request_ids,
        drafted=drafted,
        accepted=drafted // 2,
        emitted=drafted // 2 + 1,
        truncated=np.zeros(view.size, bool),
        proposed=drafted,
        step_seconds=0.01,
    )


def drafting(*lengths: int) -> Callable[[StepView], StepPlan]:
    return lambda view: StepPlan(np.array(lengths, np.int64), reason="scripted")


def raising(_: object) -> StepPlan:
    raise RuntimeError("no idea")


def ignoring(_: StepOutcome) -> None:
    pass


@dataclass
class Scripted:
    """A policy made of the test's own functions."""

    on_plan: Callable[[StepView], StepPlan] = field(default_factory=lambda: drafting(0, 4, 7))
    on_observe: Callable[[StepOutcome], object] = ignoring
    plans: int = 0
    seen: list[StepOutcome] = field(default_factory=list)

    def plan(self, view: StepView) -> StepPlan:
        self.plans += 1
        return self.on_plan(view)

    def observe(self, outcome: StepOutcome) -> None:
        self.seen.append(outcome)
        self.on_observe(outcome)


@dataclass
class Recorder:
    """A listener that keeps every step."""

    steps: list[tuple[StepView, StepPlan, StepOutcome, float]] = field(default_factory=list)

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.steps.append((view, plan, outcome, decision_seconds))


class FaultyListener:
    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        raise OSError("disk full")


def drive(controller: Controller, steps: int, first: int = 0) -> list[StepPlan]:
    """Run steps as an engine does and return their plans."""
    plans: list[StepPlan] = []
    for step in range(first, first + steps):
        view = a_view(step)
        plan = controller.plan(view)
        plans.append(plan)
        controller.observe(an_outcome(view, plan))
    return plans


def on_fallback(plan: StepPlan) -> bool:
    return plan.reason.startswith("guard:")


def test_a_valid_plan_is_passed_through() -> None:
    policy, recorder = Scripted(), Recorder()
    controller = Controller(policy, listeners=[recorder])
    plans = drive(controller, 3)
    assert [plan.draft_lengths.tolist() for plan in plans] == [[0, 4, 7]] * 3
    assert controller.stats.steps == len(policy.seen) == len(recorder.steps) == 3
    assert controller.stats.guard_trips == 0
    assert recorder.steps[1][1] is plans[1]
    assert controller.stats.decision_seconds == pytest.approx(sum(step[3] for step in recorder.steps))
    controller.plan(a_view(3))  # replaced by the next one
    assert controller.stats.decision_seconds > sum(step[3] for step in recorder.steps)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(raising, id="raises"),
        pytest.param(lambda view: None, id="no plan"),
        pytest.param(drafting(1, 2), id="too few rows"),
        pytest.param(lambda view: StepPlan(np.array([[0, 4, 7]])), id="wrong shape"),
        pytest.param(lambda view: StepPlan(np.array([0.0, 4.0, np.nan])), id="not integers"),
        pytest.param(drafting(0, 4, 8), id="over the maximum"),
        pytest.param(drafting(1, 4, 7), id="over a request's limit"),
        pytest.param(drafting(0, -1, 7), id="negative"),
        pytest.param(lambda view: StepPlan(np.array([0, 4, 7]), padded_length=7), id="padded to no graph's length"),
        pytest.param(lambda view: StepPlan(np.array([0, 4, 7]), passes=7), id="passes without a graph"),
    ],
)
@pytest.mark.parametrize(("fallback", "expected"), [(0, [0, 0, 0]), (5, [0, 4, 5])])
def test_an_invalid_plan_is_replaced_by_the_fallback(
    plan: Callable[[StepView], StepPlan], fallback: int, expected: list[int]
) -> None:
    controller = Controller(Scripted(plan), guard=GuardConfig(fallback_draft_length=fallback))
    given_plan = controller.plan(a_view())
    assert given_plan.draft_lengths.tolist() == expected
    assert on_fallback(given_plan)
    assert controller.stats.guard_trips == 1
    assert controller.stats.last_fault.startswith("plan: ")


def test_a_plan_is_padded_to_a_length_with_a_graph_that_is_not_below_its_drafts() -> None:
    view = replace(a_view(), graph_lengths=(0, 5, 7))
    longest = Controller(Scripted(lambda view: StepPlan.same_length(view, 7, ""))).plan(view)
    assert (longest.draft_lengths.tolist(), longest.padded_length) == ([0, 4, 7], 7)
    assert Controller(Scripted(lambda view: StepPlan.same_length(view, 6, ""))).plan(view).padded_length == 0
    below = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), padded_length=5)))
    assert on_fallback(below.plan(view))


def test_passes_are_those_of_a_graph_and_not_fewer_than_a_draft_has_tokens() -> None:
    view = replace(a_view(), drafter_graph_lengths=(0, 1, 5, 9))

    def planned(passes: int) -> StepPlan:
        return Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), passes=passes))).plan(view)

    assert (planned(9).draft_lengths.tolist(), planned(9).passes) == ([0, 4, 7], 9)
    assert on_fallback(planned(5))
    assert on_fallback(planned(8))
    refused = Scripted(lambda view: StepPlan(np.array([0, 1, 7]), passes=5))
    fallback = Controller(refused, guard=GuardConfig(fallback_draft_length=5)).plan(view)
    assert fallback.draft_lengths.tolist() == [0, 4, 5], "the view's limits bound it, not the refused plan's lengths"


@given(st.lists(st.integers(-3, 12), max_size=5), st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_a_plan_that_leaves_the_guard_is_always_runnable(lengths: list[int], limits: list[int]) -> None:
    view = a_view(limits=tuple(limits))
    plan = Controller(Scripted(drafting(*lengths))).plan(view)
    assert plan.draft_lengths.shape == view.draft_limits.shape
    assert (plan.draft_lengths >= 0).all()
    assert (plan.draft_lengths <= view.draft_limits).all()


def test_the_policy_is_not_asked_during_the_cooldown_and_is_asked_again_after_it() -> None:
    policy = Scripted(raising)
    controller = Controller(policy, guard=GuardConfig(cooldown_steps=5))
    drive(controller, 1)
    policy.on_plan = drafting(0, 4, 7)
    plans = drive(controller, 6, first=1)
    assert [on_fallback(plan) for plan in plans] == [True] * 4 + [False] * 2
    assert policy.plans == 3
    assert len(policy.seen) == 7, "it keeps learning meanwhile"


def test_the_cooldown_doubles_with_each_fault_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Controller, "MAX_COOLDOWN_STEPS", 5)
    asked: list[int] = []
    policy = Scripted(lambda view: asked.append(view.step))  # type: ignore[arg-type, return-value]
    drive(Controller(policy, guard=GuardConfig(cooldown_steps=2)), 20)
    assert asked == [0, 2, 6, 11, 16]


def test_the_cooldown_is_short_again_after_long_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Controller, "MAX_COOLDOWN_STEPS", 20)
    asked: list[int] = []

    def plan(view: StepView) -> StepPlan:
        asked.append(view.step)
        return raising(view) if view.step in (0, 2, 40) else StepPlan(np.array([0, 4, 7]))

    drive(Controller(Scripted(plan), guard=GuardConfig(cooldown_steps=2)), 50)
    assert asked == [0, 2, *range(6, 41), *range(42, 50)]


def test_a_cooldown_of_0_doubles_too() -> None:
    asked: list[int] = []
    policy = Scripted(lambda view: asked.append(view.step))  # type: ignore[arg-type, return-value]
    drive(Controller(policy, guard=GuardConfig(cooldown_steps=0)), 6)
    assert asked == [0, 1, 2, 4]


def test_an_exception_in_observe_is_a_fault_too() -> None:
    policy = Scripted(on_observe=raising)
    controller = Controller(policy)
    plans = drive(controller, 2)
    assert [on_fallback(plan) for plan in plans] == [False, True]
    assert controller.stats.last_fault == "observe: RuntimeError: no idea"


def slow(view: StepView) -> StepPlan:
    time.sleep(0.02)
    return StepPlan(np.array([0, 4, 7]))


def test_two_slow_plans_in_a_row_are_a_fault() -> None:
    policy = Scripted(slow)
    controller = Controller(policy, guard=GuardConfig(max_decision_seconds=0.01))
    plans = drive(controller, 3)
    assert on_fallback(plans[2])
    assert controller.stats.guard_trips == 1
    assert "TimeoutError" in controller.stats.last_fault


def test_a_single_slow_plan_is_no_fault() -> None:
    policy = Scripted(slow)
    controller = Controller(policy, guard=GuardConfig(max_decision_seconds=0.01))
    drive(controller, 1)
    policy.on_plan = drafting(0, 4, 7)
    drive(controller, Controller.SLOW_PLAN_WINDOW, first=1)
    policy.on_plan = slow
    plans = drive(controller, 1, first=1 + Controller.SLOW_PLAN_WINDOW)
    assert not on_fallback(plans[0])
    assert controller.stats.guard_trips == 0


def test_slow_plans_that_are_reused_for_a_few_steps_are_a_fault() -> None:
    policy = Scripted(slow)
    controller = Controller(policy, guard=GuardConfig(max_decision_seconds=0.01))
    for step in range(5):
        policy.on_plan = slow if step % 4 == 0 else drafting(0, 4, 7)
        drive(controller, 1, first=step)
    assert controller.stats.guard_trips == 1


def test_a_listener_that_raises_is_removed_without_effect_on_plans_or_other_listeners(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    controller = Controller(Scripted(), listeners=[FaultyListener(), recorder])
    plans = drive(controller, 4)
    assert not any(on_fallback(plan) for plan in plans)
    assert len(recorder.steps) == 4
    assert controller.listeners == [recorder]
    assert "FaultyListener" in caplog.text


def test_a_burst_of_faults_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    controller = Controller(Scripted(on_observe=raising), guard=GuardConfig(cooldown_steps=100))
    with caplog.at_level(logging.WARNING, logger="turbospec"):
        drive(controller, 20)
    assert controller.stats.guard_trips == 20
    assert len(caplog.records) == 1
    assert "no idea" in caplog.text


def test_one_burst_of_faults_doubles_the_cooldown_once() -> None:
    policy = Scripted(on_observe=raising)
    controller = Controller(policy, guard=GuardConfig(cooldown_steps=10))
    drive(controller, 8)
    policy.on_observe = ignoring
    plans = drive(controller, 8, first=8)
    assert [on_fallback(plan) for plan in plans] == [True] * 2 + [False] * 6


def test_draft_lengths_given_as_a_list_become_an_array() -> None:
    policy = Scripted(lambda view: StepPlan([0, 4, 7]))  # type: ignore[arg-type]
    plan = Controller(policy).plan(a_view())
    assert isinstance(plan.draft_lengths, np.ndarray)
    assert plan.draft_lengths.tolist() == [0, 4, 7]


def test_plans_whose_outcome_never_arrives_are_dropped() -> None:
    controller = Controller(Scripted())
    for step in range(10_000):
        controller.plan(a_view(step))
    assert 0 < len(controller._in_flight) < 1_000


def test_an_outcome_without_a_plan_is_dropped() -> None:
    policy, recorder = Scripted(), Recorder()
    controller = Controller(policy, listeners=[recorder])
    controller.observe(an_outcome(a_view(9), StepPlan(np.array([0, 0, 0]))))
    assert policy.seen == []
    assert recorder.steps == []
    assert (controller.stats.steps, controller.stats.host_faults) == (0, 1)


def test_an_outcome_of_a_negative_step_is_a_fault_also_after_such_a_view() -> None:
    controller = Controller(Scripted())
    controller.plan(replace(a_view(), step=-5))
    view = a_view()
    outcome = an_outcome(view, controller.plan(view))
    controller.observe(replace(outcome, step=-5))
    assert (controller.stats.host_faults, controller.stats.steps) == (2, 0)


def test_a_step_with_an_invalid_view_is_one_fault_of_the_host_and_a_step() -> None:
    controller, view = Controller(policy := Scripted()), a_view(9)
    controller.plan(replace(view, phase=view.phase[:1]))
    controller.observe(an_outcome(a_view(9), StepPlan(np.array([0, 0, 0]))))
    assert policy.seen == []
    assert (controller.stats.steps, controller.stats.host_faults) == (1, 1)


def test_an_empty_batch_is_planned() -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.zeros(0, np.int64))))
    assert controller.plan(a_view(limits=())).draft_lengths.shape == (0,)
    assert controller.stats.guard_trips == 0


class FaultyGate:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def advance(self, rows: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("answer", [RuntimeError("no idea"), (np.ones(1, bool), np.ones(1, bool)), None])
def test_a_gate_that_fails_ends_the_drafts_and_counts_as_a_fault(answer: object) -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), gate=FaultyGate(answer))))
    plan = controller.plan(a_view())
    assert plan.gate is not None
    keep, more = plan.gate.advance(np.array([1, 2]), np.array([0.5, 0.5]))
    assert keep.tolist() == [True, True]
    assert more.tolist() == [False, False]
    assert controller.stats.guard_trips == 1


def test_a_valid_gate_decides() -> None:
    answer = (np.array([True, False]), np.array([True, False]))
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), gate=FaultyGate(answer))))
    plan = controller.plan(a_view())
    assert plan.gate is not None
    assert plan.gate.advance(np.array([1, 2]), np.array([0.5, 0.5])) == answer
    assert controller.stats.guard_trips == 0


class Slow:
    """A gate, a selection and a trim that keep all."""

    def advance(self, rows: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.02)
        return np.ones(len(rows), bool), np.ones(len(rows), bool)

    def select(self, proposed: np.ndarray, confidence: np.ndarray) -> np.ndarray:
        time.sleep(0.02)
        return proposed

    def trim(self, drafts: np.ndarray, tokens_batched: int) -> np.ndarray:
        time.sleep(0.02)
        return drafts


def test_the_time_of_a_gate_and_of_a_selection_counts() -> None:
    began, recorder = time.perf_counter(), Recorder()
    policy = Scripted(lambda view: StepPlan(np.array([0, 4, 7]), gate=Slow(), selection=Slow()))
    controller, view = Controller(policy, listeners=[recorder]), a_view()
    plan = controller.plan(view)
    assert plan.gate is not None
    assert plan.selection is not None
    plan.gate.advance(np.array([1, 2]), np.array([0.5, 0.5]))
    plan.selection.select(np.array([0, 4, 7]), np.full((3, 7), 0.5))
    controller.observe(an_outcome(view, plan))
    assert 0.04 <= controller.stats.decision_seconds < time.perf_counter() - began
    assert recorder.steps[0][3] >= 0.04


def test_the_time_of_a_trim_counts() -> None:
    recorder = Recorder()
    policy = Scripted(lambda view: StepPlan(np.array([0, 4, 7]), trim=Slow()))
    controller, view = Controller(policy, listeners=[recorder]), a_view()
    plan = controller.plan(view)
    assert plan.trim is not None
    plan.trim.trim(np.array([0, 4, 7]), 20)
    controller.observe(an_outcome(view, plan))
    assert controller.stats.decision_seconds >= 0.02
    assert recorder.steps[0][3] >= 0.02


def reusable(steps: int) -> Callable[[StepView], StepPlan]:
    return lambda view: StepPlan(np.array([0, 4, 7]), valid_steps=steps)


def test_a_plan_is_reused_as_long_as_its_policy_says() -> None:
    policy, recorder = Scripted(reusable(3)), Recorder()
    controller = Controller(policy, listeners=[recorder])
    for step in range(7):
        plan = controller.plan(a_view(step))
        assert plan.draft_lengths.tolist() == [0, 4, 7]
        controller.observe(an_outcome(a_view(step), plan))
    assert policy.plans == 3
    assert [outcome.step for outcome in policy.seen] == [*range(7)], "the policy learns from every step"
    assert [plan.reason for _, plan, _, _ in recorder.steps][1:3] == ["plan reused"] * 2


def test_a_fault_ends_the_reuse_of_a_plan() -> None:
    def observe(outcome: StepOutcome) -> None:
        raise RuntimeError("no idea")

    policy = Scripted(reusable(9), observe)
    controller = Controller(policy, guard=GuardConfig(cooldown_steps=0))
    controller.observe(an_outcome(a_view(0), controller.plan(a_view(0))))
    controller.plan(a_view(1))
    assert policy.plans == 2


def test_steps_of_the_guard_do_not_count_as_steps_that_reuse_a_plan() -> None:
    policy = Scripted(reusable(9))
    controller = Controller(policy, guard=GuardConfig(cooldown_steps=2))
    controller.observe(an_outcome(a_view(0), controller.plan(a_view(0))))
    policy.on_observe = raising
    controller.observe(an_outcome(a_view(1), controller.plan(a_view(1))))
    policy.on_observe = ignoring
    for step in range(2, 6):
        controller.observe(an_outcome(a_view(step), controller.plan(a_view(step))))
    assert [outcome.step for outcome in policy.seen] == [0, 1, 3, 4, 5], (
        "step 2 ran on the fallback, and the plan of step 0 held for it"
    )


class FaultySelection:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def select(self, proposed: np.ndarray, confidence: np.ndarray) -> np.ndarray:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]

    def trim(self, drafts: np.ndarray, tokens_batched: int) -> np.ndarray:
        return self.select(drafts, np.zeros(0))


NO_LENGTHS = [
    RuntimeError("no idea"),
    np.zeros(1, int),
    np.ones(2, int),
    np.array([[0, 4, 7]]),
    np.array([0.0, 4.0, 7.0]),
    np.zeros(3, bool),
    np.array([0, 5, 7]),
    np.array([0, -1, 7]),
    None,
]
"""Answers that do not shorten drafts of 0, 4 and 7 tokens."""


@pytest.mark.parametrize("answer", NO_LENGTHS)
def test_a_trim_that_fails_verifies_whole_drafts_and_counts_as_a_fault(answer: object) -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), trim=FaultySelection(answer))))
    plan = controller.plan(a_view())
    assert plan.trim is not None
    assert plan.trim.trim(np.array([0, 4, 7]), 20).tolist() == [0, 4, 7]
    assert controller.stats.guard_trips == 1
    assert "trim" in controller.stats.last_fault


@pytest.mark.parametrize(
    ("drafts", "tokens_batched"),
    [
        (np.array([0, 4]), 20),
        (np.array([0, 4, -7]), 20),
        (np.array([0.0, 4.0, 7.0]), 20),
        (np.array([0, 4, 7]), 10),
        (np.array([0, 4, 7]), 20.0),
        (None, 20),
    ],
)
def test_a_trim_does_not_see_what_breaks_the_contract(drafts: object, tokens_batched: object) -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), trim=FaultySelection(Exception()))))
    plan = controller.plan(a_view())
    assert plan.trim is not None
    assert plan.trim.trim(drafts, tokens_batched) is drafts  # type: ignore[arg-type]
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (1, 0)


@pytest.mark.parametrize("other", ["gate", "selection"])
def test_a_trim_beside_a_gate_or_a_selection_is_a_fault(other: str) -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), trim=Slow(), **{other: Slow()})))
    assert controller.plan(a_view()).trim is None
    assert controller.stats.guard_trips == 1


def test_a_valid_trim_decides() -> None:
    answer = np.array([0, 4, 0])
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), trim=FaultySelection(answer))))
    plan = controller.plan(a_view())
    assert plan.trim is not None
    assert plan.trim.trim(np.array([0, 4, 7], np.int32), 20).tolist() == [0, 4, 0]
    assert controller.stats.guard_trips == controller.stats.host_faults == 0


@pytest.mark.parametrize("answer", NO_LENGTHS)
def test_a_selection_that_fails_verifies_whole_drafts_and_counts_as_a_fault(answer: object) -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), selection=FaultySelection(answer))))
    plan = controller.plan(a_view())
    assert plan.selection is not None
    assert plan.selection.select(np.array([0, 4, 7]), np.full((3, 7), 0.5)).tolist() == [0, 4, 7]
    assert controller.stats.guard_trips == 1
    assert "selection" in controller.stats.last_fault


def test_a_valid_selection_decides_and_its_time_counts() -> None:
    answer = np.array([0, 4, 0])
    controller = Controller(Scripted(lambda view: StepPlan(np.array([0, 4, 7]), selection=FaultySelection(answer))))
    view = a_view()
    plan = controller.plan(view)
    assert plan.selection is not None
    assert plan.selection.select(np.array([0, 4, 7]), np.full((3, 7), 0.5)).tolist() == [0, 4, 0]
    assert controller.stats.guard_trips == 0
    before = plan.selection.seconds  # type: ignore[attr-defined]
    assert before > 0.0
