"""The guard against hosts and policies that break the contract. The cases were found by hand and by fuzzing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.controller import Controller, GuardConfig
from turbospec.interface import MAX_DRAFT_LENGTH, MAX_REQUESTS, StepOutcome, StepPlan, StepView
from turbospec.observability import StepMetrics
from turbospec.policy import load_policy


@dataclass
class Scripted:
    """A policy made of the test's own functions."""

    on_plan: Callable[[StepView], Any] = lambda view: StepPlan.same_length(view, 3, "scripted")
    on_observe: Callable[[StepOutcome], object] = lambda outcome: None
    views: list[StepView] = field(default_factory=list)
    outcomes: list[StepOutcome] = field(default_factory=list)

    def plan(self, view: StepView) -> Any:
        self.views.append(view)
        return self.on_plan(view)

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)
        self.on_observe(outcome)


@dataclass
class Recorder:
    """A listener that keeps every step."""

    steps: list[tuple[StepView, StepPlan, StepOutcome]] = field(default_factory=list)

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.steps.append((view, plan, outcome))


def drive(controller: Controller, steps: int, first: int = 0, **change: Any) -> list[StepPlan]:
    """Run steps of four requests, which accept half of their drafts, and return the plans."""
    plans: list[StepPlan] = []
    for step in range(first, first + steps):
        view = make_view(step=step)
        plan = controller.plan(view)
        plans.append(plan)
        controller.observe(replace(make_outcome(view, plan.draft_lengths, plan.draft_lengths // 2), **change))
    return plans


def on_fallback(plan: StepPlan) -> bool:
    return plan.reason.startswith("guard:")


BROKEN_VIEWS: dict[str, dict[str, Any]] = {
    "no limits": {"draft_limits": None},
    "a negative limit": {"draft_limits": np.array([3, 3, 3, -1])},
    "a limit above the maximum": {"draft_limits": np.array([3, 3, 3, 16])},
    "limits of the wrong length": {"draft_limits": np.array([3, 3])},
    "limits of the wrong shape": {"draft_limits": np.full((4, 1), 3)},
    "limits that are no integers": {"draft_limits": np.full(4, 3.0)},
    "limits of objects": {"draft_limits": np.full(4, 3, dtype=object)},
    "limits in prefill": {"phase": np.zeros(4, np.int64)},
    "an unknown phase": {"phase": np.array([2, 2, 2, 3])},
    "an unhashable step": {"step": [1]},
    "a negative step": {"step": -1},
    "a step that is no integer": {"step": 1.5},
    "a huge step": {"step": 10**30},
    "an endless draft": {"max_draft": 10**9},
    "no maximum": {"max_draft": None},
    "duplicate requests": {"request_ids": np.array([1, 2, 3, 1])},
    "requests without end": {"request_ids": range(2**60)},
    "no contexts": {"context_tokens": None},
    "a negative context": {"context_tokens": np.array([1, 1, 1, -1])},
    "contexts beyond all memory": {"context_tokens": np.full(4, 2**62)},
    "a time that is no number": {"now": float("nan")},
    "an infinite time": {"now": float("inf")},
    "an endless wait": {"waiting_seconds": 1e308},
    "negative waiting requests": {"waiting_requests": -1},
    "a drafter larger than the target": {"drafter_kv_share": 1.5},
    "memory that is no number": {"drafter_kv_share": float("nan")},
    "a flag that is no flag": {"parallel_drafter": np.array([True, False])},
    "graphs of endless drafts": {"graph_lengths": (0, 10**9)},
    "graphs of less than nothing": {"largest_graph": -1},
    "graphs of endless passes": {"drafter_graph_lengths": (0, 10**9)},
    "graphs of parts of a pass": {"drafter_graph_lengths": (0, 1.5)},
}


@pytest.mark.parametrize("change", BROKEN_VIEWS.values(), ids=BROKEN_VIEWS)
def test_a_broken_view_gets_no_drafts_and_no_policy_sees_it(change: dict[str, Any]) -> None:
    policy = Scripted()
    controller = Controller(policy, guard=GuardConfig(fallback_draft_length=3))
    plan = controller.plan(make_view(4, **change))
    assert plan.draft_lengths.tolist() == [0, 0, 0, 0]
    assert plan.draft_lengths.dtype == np.int64
    assert policy.views == []
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (1, 0)
    assert controller.stats.last_fault.startswith("view: ")


PER_REQUEST = (
    "phase",
    "context_tokens",
    "emitted_tokens",
    "tokens_left",
    "drafter_lag_tokens",
    "class_ids",
    "draft_limits",
)


@pytest.mark.parametrize("field", PER_REQUEST)
def test_an_array_of_a_view_that_lacks_a_request_is_refused(field: str) -> None:
    """A compiled function would read past its end."""
    controller = Controller(Scripted())
    controller.plan(make_view(4, **{field: getattr(make_view(3), field)}))
    assert controller.stats.last_fault == "view: HostFault: the arrays differ in length"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("a negative step", "step is negative"),
        ("an endless draft", "max_draft is not between"),
        ("negative waiting requests", "waiting_requests, admitted_requests"),
        ("a time that is no number", "now is not between"),
        ("an endless wait", "waiting_seconds is not between"),
        ("an unknown phase", "phase is not one of Phase"),
        ("a negative context", "context_tokens, emitted_tokens or drafter_lag_tokens is not between"),
        ("a limit above the maximum", "draft_limits is not between 0 and max_draft"),
        ("limits in prefill", "draft_limits is not 0 in prefill"),
        ("duplicate requests", "request_ids has duplicates"),
    ],
)
def test_what_is_wrong_with_a_view_is_named(case: str, says: str) -> None:
    controller = Controller(Scripted())
    controller.plan(make_view(4, **BROKEN_VIEWS[case]))
    assert controller.stats.last_fault.startswith(f"view: HostFault: {says}")


@pytest.mark.parametrize("view", [None, 7, "view", object(), {"step": 1}])
def test_an_object_that_is_no_view_gets_a_plan_without_requests(view: Any) -> None:
    controller = Controller(Scripted())
    assert controller.plan(view).draft_lengths.tolist() == []
    assert controller.stats.host_faults == 1


BROKEN_OUTCOMES: dict[str, dict[str, Any]] = {
    "accepted more than was drafted": {"accepted": np.full(4, 9)},
    "drafted more than was proposed": {"proposed": np.zeros(4, np.int64)},
    "proposed more than the maximum": {"proposed": np.full(4, 16)},
    "a negative number": {"accepted": np.full(4, -1), "drafted": np.full(4, -1)},
    "numbers that wrap around": {"accepted": np.ones(4, np.int64), "drafted": np.full(4, -(2**63))},
    "endless tokens": {"emitted": np.full(4, 2**62)},
    "too few rows": {"drafted": np.zeros(3, np.int64), "accepted": np.zeros(3, np.int64)},
    "two dimensions": {"accepted": np.zeros((4, 1), np.int64)},
    "no array": {"accepted": None},
    "an array of floats": {"emitted": np.ones(4)},
    "other requests": {"request_ids": np.array([0, 1, 2, 9])},
    "an endless step": {"step_seconds": 1e308},
    "a step without end": {"step_seconds": float("inf")},
    "a time that is no number": {"verify_seconds": float("nan")},
    "a negative time": {"draft_seconds": -1e-3},
    "more drafting than step": {"draft_seconds": 0.2, "step_seconds": 0.1},
    "a step too short to be measured": {"step_seconds": 5e-324},
    "seconds without steps": {"reused_plan_seconds": 1.0},
    "prompts without steps": {"reused_plan_prefill_tokens": 100},
    "steps without seconds": {"reused_plan_steps": 3, "reused_plan_tokens": 12},
    "negative tokens": {"tokens_batched": -1},
    "a confidence above 1": {"confidence": np.full((4, 3), 1.5)},
    "a confidence that is no number": {"confidence": np.full((4, 3), np.nan)},
    "a narrow confidence": {"confidence": np.full((4, 2), 0.5)},
    "confidence of too few requests": {"confidence": np.full((3, 3), 0.5)},
    "an endless draft": {"draft_rows": np.ones(10**6, np.int64)},
    "a pass over more tokens than there can be": {"draft_rows": np.array([MAX_REQUESTS * MAX_DRAFT_LENGTH + 1])},
    "another step": {"step": 5},
    "an unhashable step": {"step": {}},
}


@pytest.mark.parametrize("change", BROKEN_OUTCOMES.values(), ids=BROKEN_OUTCOMES)
def test_a_broken_outcome_reaches_neither_policy_nor_listeners(change: dict[str, Any]) -> None:
    policy, recorder = Scripted(), Recorder()
    controller = Controller(policy, listeners=[recorder])
    drive(controller, 1, **change)
    assert policy.outcomes == []
    assert recorder.steps == []
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (1, 0)
    assert controller.stats.last_fault.startswith("outcome: ")
    assert not on_fallback(drive(controller, 1, first=1)[0]), "the policy did nothing wrong"


@pytest.mark.parametrize("field", ["drafted", "accepted", "emitted", "proposed", "truncated"])
def test_an_array_of_an_outcome_that_lacks_a_request_is_refused(field: str) -> None:
    controller = Controller(Scripted())
    drive(controller, 1, **{field: getattr(make_outcome(make_view(3), 0, 0), field)})
    assert controller.stats.last_fault == "outcome: HostFault: the arrays differ in length from the view's"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("negative tokens", "a number of tokens, steps or requests is not between"),
        ("an endless step", "step_seconds is neither"),
        ("a time that is no number", "draft_seconds or verify_seconds"),
        ("more drafting than step", "draft_seconds or verify_seconds"),
        ("steps without seconds", "reused_plan_seconds is not between"),
        ("seconds without steps", "there are tokens or seconds of reused plans"),
        ("accepted more than was drafted", "0, accepted, drafted, proposed"),
        ("endless tokens", "emitted is not between"),
        ("an endless draft", "draft_rows has more than"),
        ("a narrow confidence", "confidence has fewer columns"),
        ("other requests", "request_ids is not the view's"),
    ],
)
def test_what_is_wrong_with_an_outcome_is_named(case: str, says: str) -> None:
    controller = Controller(Scripted())
    drive(controller, 1, **BROKEN_OUTCOMES[case])
    assert controller.stats.last_fault.startswith(f"outcome: HostFault: {says}")


def test_a_step_without_requests_is_no_fault() -> None:
    policy = Scripted()
    controller = Controller(policy)
    view = make_view(0)
    controller.observe(make_outcome(view, controller.plan(view).draft_lengths, 0))
    assert len(policy.outcomes) == 1
    assert controller.stats.host_faults == 0


def test_steps_with_broken_outcomes_end_a_cooldown_too() -> None:
    def fail(view: StepView) -> StepPlan:
        raise RuntimeError("no idea")

    policy = Scripted(fail)
    controller = Controller(policy, guard=GuardConfig(cooldown_steps=3))
    drive(controller, 6, **BROKEN_OUTCOMES["accepted more than was drafted"])
    assert [view.step for view in policy.views] == [0, 3]
    assert controller.stats.steps == 6


def test_an_outcome_counts_once() -> None:
    policy = Scripted()
    controller = Controller(policy)
    view = make_view()
    outcome = make_outcome(view, controller.plan(view).draft_lengths, 0)
    controller.observe(outcome)
    controller.observe(outcome)
    assert len(policy.outcomes) == 1
    assert controller.stats.host_faults == 1


@pytest.mark.parametrize("policy", ["adaptive", "bandit", "goodput"])
@pytest.mark.parametrize("seconds", [1e308, float("inf"), float("nan"), -1.0, 5e-324])
def test_one_impossible_duration_changes_nothing(policy: str, seconds: float) -> None:
    once, never = (Controller(load_policy(policy), guard=GuardConfig(max_decision_seconds=60.0)) for _ in range(2))
    for controller in (once, never):
        drive(controller, 40)
        controller.plan(make_view(step=40))
    once.observe(make_outcome(make_view(step=40), 0, 0, step_seconds=seconds))
    after = drive(once, 40, first=41)
    assert not any(on_fallback(plan) for plan in after)
    assert [plan.draft_lengths.tolist() for plan in after] == [
        plan.draft_lengths.tolist() for plan in drive(never, 40, first=41)
    ]


def test_a_burst_of_the_hosts_faults_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    controller = Controller(Scripted())
    with caplog.at_level(logging.WARNING, logger="turbospec"):
        for step in range(30):
            controller.plan(make_view(step=step, draft_limits=None))
    assert [record.getMessage() for record in caplog.records] == [
        "the engine broke the contract in view: HostFault: draft_limits is None, not a one-dimensional array of "
        "integers; the policy does not see it"
    ]
    assert controller.stats.host_faults == 30


def test_values_of_other_types_are_converted() -> None:
    """Otherwise each type compiles every kernel again, for seconds."""
    policy = Scripted()
    controller = Controller(policy)
    limits = np.array([3, 3, 3, 3], np.int32)
    limits.setflags(write=False)
    view = make_view(4, step=np.int64(0), draft_limits=limits, context_tokens=np.arange(8)[::2], now=np.float32(1.0))
    plan = controller.plan(view)
    controller.observe(
        make_outcome(view, 3, 1, confidence=np.full((4, 3), 0.5, np.float32), step_seconds=np.float32(0.5))
    )
    (seen,), (observed,) = policy.views, policy.outcomes
    assert plan.draft_lengths.tolist() == [3, 3, 3, 3]
    assert (type(seen.step), type(seen.now)) == (int, float)
    assert seen.context_tokens.tolist() == [0, 2, 4, 6]
    assert all(
        array.dtype == np.int64 and array.flags.c_contiguous for array in (seen.draft_limits, seen.context_tokens)
    )
    assert observed.confidence is not None
    assert observed.confidence.dtype == np.float64
    assert type(observed.step_seconds) is float
    assert controller.stats.host_faults == 0


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("error", [Unprintable(), RecursionError(), MemoryError(), OSError("two\nlines \x1b[31m")])
@pytest.mark.parametrize("where", ["plan", "observe"])
def test_any_exception_of_a_policy_is_a_fault(error: Exception, where: str) -> None:
    def fail(_: object) -> None:
        raise error

    controller = Controller(Scripted(on_plan=fail) if where == "plan" else Scripted(on_observe=fail))
    drive(controller, 2)
    assert controller.stats.guard_trips > 0
    assert controller.stats.last_fault.startswith(f"{where}: {type(error).__name__}")
    assert controller.stats.last_fault.isprintable()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_passes_through(error: type[BaseException]) -> None:
    def interrupt(_: object) -> None:
        raise error

    view = make_view()
    with pytest.raises(error):
        Controller(Scripted(on_plan=interrupt)).plan(view)
    controller = Controller(Scripted(on_observe=interrupt))
    controller.plan(view)
    with pytest.raises(error):
        controller.observe(make_outcome(view, 0, 0))


def test_a_handler_of_the_log_that_raises_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(record: logging.LogRecord) -> None:
        raise OSError("disk full")

    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", emit)
    logger = logging.getLogger("turbospec")
    logger.addHandler(handler)
    try:
        controller = Controller(Scripted(on_plan=lambda view: None), listeners=[StepMetrics])  # type: ignore[list-item]
        drive(controller, 1)
        controller.plan(None)  # type: ignore[arg-type]
    finally:
        logger.removeHandler(handler)
    assert (controller.stats.guard_trips, controller.stats.host_faults) == (1, 1)


PLANS_OF_NONSENSE: dict[str, dict[str, Any]] = {
    "no lengths": {"draft_lengths": None},
    "lengths of one number": {"draft_lengths": 3},
    "an empty list": {"draft_lengths": []},
    "valid for ever": {"valid_steps": 10**9},
    "valid for longer than numbers go": {"valid_steps": 10**30},
    "never valid": {"valid_steps": 0},
    "valid for some time": {"valid_steps": "3"},
    "valid for 1.5 steps": {"valid_steps": 1.5},
    "padded by a float": {"padded_length": 7.0},
    "padded by an array": {"padded_length": np.array([7, 7])},
    "padded below its drafts": {"padded_length": 2},
    "tokens in words": {"predicted_tokens": "many"},
    "endless tokens": {"predicted_tokens": float("inf")},
    "negative seconds": {"predicted_seconds": -1.0},
    "no seconds": {"predicted_seconds": None},
    "a reason that is no text": {"reason": 7},
    "a probe that is no flag": {"probe": "yes"},
}


@pytest.mark.parametrize("change", PLANS_OF_NONSENSE.values(), ids=PLANS_OF_NONSENSE)
def test_a_plan_of_nonsense_is_replaced_by_the_fallback(change: dict[str, Any]) -> None:
    policy = Scripted(lambda view: replace(StepPlan.same_length(view, 3, "scripted"), **change))
    controller = Controller(policy, guard=GuardConfig(fallback_draft_length=2))
    plan = controller.plan(make_view(2, graph_lengths=(0, 2, 7)))
    assert plan.draft_lengths.tolist() == [2, 2]
    assert on_fallback(plan)
    assert controller.stats.guard_trips == 1


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (StepPlan(np.full(3, 1)), "draft_lengths has another length than the view"),
        (StepPlan(np.full(2, 16)), "draft_lengths must lie between 0 and the view's draft_limits"),
        (StepPlan(np.full(2, 3), padded_length=2), "draft_lengths must not exceed padded_length"),
        (StepPlan(np.full(2, 3), passes=2), "draft_lengths of the drafter must not exceed passes"),
        (StepPlan(np.full(2, 3), valid_steps=0), "valid_steps is not between"),
        (StepPlan(np.full(2, 3), predicted_seconds=-1.0), "predicted_tokens or predicted_seconds is neither"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named(plan: StepPlan, says: str) -> None:
    controller = Controller(Scripted(lambda view: plan))
    controller.plan(make_view(2, graph_lengths=(0, 2, 7), drafter_graph_lengths=(2,)))
    assert controller.stats.last_fault.startswith(f"plan: PlanFault: {says}")


def test_a_reason_fits_a_line_of_a_log_and_of_a_trace() -> None:
    plan = Controller(Scripted(lambda view: StepPlan.same_length(view, 3, "λ \ud800\n" * 10_000))).plan(make_view())
    assert len(plan.reason) < 1000
    assert "\n" not in plan.reason
    plan.reason.encode()
    plan = Controller(Scripted(lambda view: StepPlan.same_length(view, 3, "K = 3\nred: \x1b[31m"))).plan(make_view())
    assert plan.reason == "K = 3 red: [31m"


@pytest.mark.parametrize(
    "answer",
    [
        StepPlan(np.full(2, 15)),
        StepPlan(np.full(2, 15), padded_length=7),
        StepPlan(np.ones(2, int)),
        RuntimeError("no"),
    ],
)
def test_a_policy_cannot_raise_the_limits(answer: StepPlan | Exception) -> None:
    def plan(view: StepView) -> StepPlan:
        view.draft_limits[:] = 15
        if isinstance(answer, Exception):
            raise answer
        return answer

    view = make_view(2, draft_limits=np.array([3, 5]))
    controller = Controller(Scripted(plan), guard=GuardConfig(fallback_draft_length=9))
    assert controller.plan(view).draft_lengths.tolist() == [3, 5]
    assert view.draft_limits.tolist() == [3, 5], "the host relies on them too"


def test_limits_that_a_policy_has_locked_still_hold() -> None:
    def plan(view: StepView) -> StepPlan:
        view.draft_limits[:] = 15
        view.draft_limits.setflags(write=False)
        raise RuntimeError("no idea")

    controller = Controller(Scripted(plan), guard=GuardConfig(fallback_draft_length=9))
    assert controller.plan(make_view(2, draft_limits=np.array([3, 5]))).draft_lengths.tolist() == [3, 5]


def test_a_policy_cannot_replace_the_limits() -> None:
    def plan(view: StepView) -> StepPlan:
        object.__setattr__(view, "draft_limits", np.array([99]))
        return StepPlan(np.array([3, 6]))

    assert on_fallback(Controller(Scripted(plan)).plan(make_view(2, draft_limits=np.array([3, 5]))))


def test_a_plan_that_is_refused_leaves_the_limits_as_they_were() -> None:
    view = make_view(2, draft_limits=np.array([3, 5]))
    controller = Controller(Scripted(lambda view: StepPlan(np.array([1, 1]), padded_length=7)))
    controller.plan(view)
    assert controller.stats.guard_trips == 1
    assert view.draft_limits.tolist() == [3, 5]


def test_a_policy_cannot_change_a_plan_that_it_has_returned() -> None:
    lengths = np.array([1, 2])
    plan = Controller(Scripted(lambda view: StepPlan(lengths, valid_steps=3))).plan(make_view(2))
    lengths[:] = 99
    assert plan.draft_lengths.tolist() == [1, 2]


class Gate:
    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def advance(self, rows: np.ndarray, confidence: np.ndarray) -> Any:
        if self.answer is None:
            return np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        return self.answer(rows, confidence)

    def select(self, proposed: np.ndarray, confidence: np.ndarray) -> Any:
        proposed[:] = 99
        return proposed


def test_a_plan_that_is_returned_again_and_again_has_one_guard() -> None:
    returned = StepPlan(np.array([1, 2]), gate=Gate())
    controller = Controller(Scripted(lambda view: returned))
    for step in range(2000):
        plan = controller.plan(make_view(2, step=step))
    assert plan.gate is not None
    assert plan.gate.advance(np.array([0]), np.array([0.5]))[1].tolist() == [True]
    assert controller.stats.guard_trips == 0


def test_a_gate_cannot_change_what_the_host_has_given_it() -> None:
    def spoil(rows: np.ndarray, confidence: np.ndarray) -> Any:
        rows[:], confidence[:] = 0, 0.0
        return np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)

    gate = Controller(Scripted(lambda view: StepPlan(np.array([1, 2]), gate=Gate(spoil)))).plan(make_view(2)).gate
    assert gate is not None
    rows, confidence = np.array([0, 1]), np.array([0.5, 0.5])
    gate.advance(rows, confidence)
    assert (rows.tolist(), confidence.tolist()) == ([0, 1], [0.5, 0.5])


def test_a_selection_cannot_lengthen_the_drafts() -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([1, 2]), selection=Gate())))
    selection = controller.plan(make_view(2)).selection
    assert selection is not None
    proposed = np.array([1, 2])
    assert selection.select(proposed, np.full((2, 2), 0.5)).tolist() == [1, 2]
    assert proposed.tolist() == [1, 2]
    assert controller.stats.guard_trips == 1


@pytest.mark.parametrize(
    ("rows", "confidence"),
    [
        (np.array([0, 2]), np.array([0.5, 0.5])),
        (np.array([-1]), np.array([0.5])),
        (np.array([0]), np.array([0.5, 0.5])),
        (np.array([0]), np.array([np.nan])),
        (np.array([0]), np.array([1.5])),
        (np.array([0.0]), np.array([0.5])),
        (np.array(0), np.array(0.5)),
        (None, None),
    ],
)
def test_a_gate_does_not_see_rows_that_the_plan_has_not(rows: Any, confidence: Any) -> None:
    def fail(rows: object, confidence: object) -> None:
        pytest.fail("the policy's gate was called")

    controller = Controller(Scripted(lambda view: StepPlan(np.array([1, 2]), gate=Gate(fail))))
    gate = controller.plan(make_view(2)).gate
    assert gate is not None
    keep, more = gate.advance(rows, confidence)
    assert len(keep) == (len(rows) if np.ndim(rows) else 0)
    assert keep.all()
    assert not more.any()
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (1, 0)


@pytest.mark.parametrize("confidence", [np.full((2, 1), 0.5), np.full((2, 2), np.nan), np.full((3, 2), 0.5), None])
def test_a_selection_does_not_see_a_broken_confidence(confidence: Any) -> None:
    controller = Controller(Scripted(lambda view: StepPlan(np.array([1, 2]), selection=Gate())))
    selection = controller.plan(make_view(2)).selection
    assert selection is not None
    assert selection.select(np.array([1, 2]), confidence).tolist() == [1, 2]
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (1, 0)


def test_a_gate_sees_one_type_of_confidence_and_rows() -> None:
    """A compiled gate would be compiled for each type, for seconds."""
    seen: list[tuple[np.dtype[Any], np.dtype[Any]]] = []

    def answer(rows: np.ndarray, confidence: np.ndarray) -> Any:
        seen.append((rows.dtype, confidence.dtype))
        return confidence > 0.1, confidence > 0.1

    gate = Controller(Scripted(lambda view: StepPlan(np.array([3, 3]), gate=Gate(answer)))).plan(make_view(2)).gate
    assert gate is not None
    gate.advance(np.arange(2), np.full(2, 0.5))
    gate.advance(np.arange(2, dtype=np.int32), np.full(2, 0.5, np.float32))
    assert seen[0] == seen[1] == (np.dtype(np.int64), np.dtype(np.float64))
