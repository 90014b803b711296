from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.step_times import (
    STEP_ATTRIBUTE,
    TIMES_ATTRIBUTE,
    CapturedGraphs,
    StepTimes,
)
from turbospec.hosts.vllm.worker import step_clock


class Clock:
    """Of a device that computes what it is given at once."""

    now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Event:
    clock: Clock

    reached = -1.0
    """Until when somebody has waited for the device."""

    def __init__(self, *, enable_timing: bool, blocking: bool) -> None:
        assert enable_timing
        assert blocking
        self.at: float | None = None

    def record(self) -> None:
        self.at = self.clock.now

    def synchronize(self) -> None:
        assert self.at is not None
        Event.reached = max(Event.reached, self.at)

    def elapsed_time(self, later: Event) -> float:
        if self.at is None or later.at is None or later.at > Event.reached:
            raise RuntimeError("not ready")
        return (later.at - self.at) * 1e3


class Output:
    """Of async scheduling: the step's output is read from it later."""

    def __init__(self, step: SimpleNamespace) -> None:
        self.step = step

    def get_output(self) -> SimpleNamespace:
        return self.step


class Runner:
    def __init__(self, clock: Clock, device: str, *, asynchronous: bool, late: bool = False) -> None:
        self.clock, self.device, self.asynchronous, self.late = clock, SimpleNamespace(type=device), asynchronous, late
        step_clock.install(self, self, "propose")

    def execute_model(self, scheduler_output: Any) -> None:
        self.clock.spend(4.0)

    def sample_tokens(self, seconds: float) -> Any:
        self.clock.spend(0.5)
        if seconds and not self.late:
            self.propose(seconds)
        output = SimpleNamespace(req_ids=["a"])
        return Output(step=output) if self.asynchronous else output

    def propose(self, seconds: float) -> str:
        self.clock.spend(seconds)
        return "drafts"

    def run(self, number: int, drafting: float) -> Any:
        output = SimpleNamespace(**{STEP_ATTRIBUTE: number})
        self.execute_model(output)
        return self.sample_tokens(drafting)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, str]:
    clock = Clock()
    monkeypatch.setattr(step_clock.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(Event, "clock", clock, raising=False)
    monkeypatch.setattr(Event, "reached", -1.0)
    monkeypatch.setattr(step_clock.torch.cuda, "Event", Event)
    return clock, request.param


def times_of(output: Any) -> StepTimes:
    return getattr(output, TIMES_ATTRIBUTE)


def test_a_step_is_timed_when_its_tokens_have_arrived(device: tuple[Clock, str]) -> None:
    clock, name = device
    runner = Runner(clock, name, asynchronous=True)
    first = runner.run(0, 3.0)
    clock.spend(0.25)
    second = runner.run(1, 2.0)
    third = runner.run(2, 0.0)  # launched before the output of the step before is read
    assert times_of(first.get_output()) == StepTimes(0.0, 0.0, 4.5)
    assert times_of(second.get_output())[:3] == pytest.approx((3.0, 0.25, 4.5))
    assert times_of(third.get_output())[:3] == pytest.approx((2.0, 0.0, 4.5))


def test_without_async_scheduling_the_output_has_its_times_at_once(device: tuple[Clock, str]) -> None:
    runner = Runner(*device, asynchronous=False)
    runner.run(0, 1.0)
    assert times_of(runner.run(1, 0.0))[:3] == pytest.approx((1.0, 0.0, 4.5))
    assert times_of(runner.run(2, 0.0))[:3] == pytest.approx((0.0, 0.0, 4.5))


def test_drafts_that_are_made_after_the_output_belong_to_its_step(device: tuple[Clock, str]) -> None:
    clock, name = device
    runner = Runner(clock, name, asynchronous=False, late=True)
    runner.run(0, 0.0)
    clock.spend(0.5)
    assert runner.propose(2.0) == "drafts"
    clock.spend(0.25)
    assert times_of(runner.run(1, 0.0))[:3] == pytest.approx((2.0, 0.75, 4.5))


def test_an_output_is_freed_when_nobody_holds_it(device: tuple[Clock, str]) -> None:
    output = Runner(*device, asynchronous=True).run(0, 1.0)
    gone = weakref.ref(output)
    gc.disable()
    try:
        del output
        assert gone() is None
    finally:
        gc.enable()


def test_a_clock_that_fails_changes_nothing_else(device: tuple[Clock, str], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(*device, asynchronous=True)
    monkeypatch.setattr(step_clock.StepClock, "_now", lambda _: 1 / 0)
    output = runner.run(0, 1.0)
    assert output.get_output() is output.step
    assert not hasattr(output.step, TIMES_ATTRIBUTE)
    assert runner.propose(1.0) == "drafts"


def test_drafts_without_a_step_change_no_other_steps_times(device: tuple[Clock, str]) -> None:
    runner = Runner(*device, asynchronous=False)
    runner.run(0, 1.0)
    runner.propose(50.0)  # vLLM runs a batch of its own
    assert times_of(runner.run(1, 0.0)).drafting == pytest.approx(1.0)


def test_only_steps_of_our_scheduler_are_timed(device: tuple[Clock, str]) -> None:
    runner = Runner(*device, asynchronous=False)
    runner.execute_model(SimpleNamespace())  # vLLM warms up
    runner.propose(1.0)
    assert not hasattr(runner.sample_tokens(1.0), TIMES_ATTRIBUTE)
    runner.run(0, 1.0)
    assert times_of(runner.run(7, 0.0)) == StepTimes(0.0, 0.0, 4.5), "steps in between are unknown"
    step_clock.install(other := SimpleNamespace(device=SimpleNamespace(type="xpu")), other, "propose")
    assert not hasattr(other, "execute_model")


def drafter_graph(requests: int, **length: int) -> SimpleNamespace:
    return SimpleNamespace(num_tokens=requests, **length)


def target_graph(requests: int | None, row_tokens: int | None) -> SimpleNamespace:
    return SimpleNamespace(num_tokens=64, num_reqs=requests, uniform_token_count=row_tokens)


@pytest.mark.parametrize(
    ("graphs", "lengths", "requests"),
    [
        (None, (), 0),
        ((), (), 0),
        ((drafter_graph(1), drafter_graph(64)), (), 0),
        ([drafter_graph(n, num_speculative_tokens=k) for n in (1, 64) for k in (5, 3)], (0, 1, 3, 5), 64),
    ],
    ids=["another drafter", "none captured", "one for each pass", "one for all passes"],
)
def test_the_graphs_of_passes_are_those_that_were_captured(
    graphs: Any, lengths: tuple[int, ...], requests: int
) -> None:
    drafter = SimpleNamespace()
    if graphs is not None:
        drafter.decode_cudagraph_manager = SimpleNamespace(graphs=graphs)
    found = step_clock.captured_graphs(SimpleNamespace(), drafter)
    assert found == CapturedGraphs((), lengths, requests)


@pytest.mark.parametrize(
    ("graphs", "found"),
    [
        ((), ()),
        ([target_graph(None, None)], ()),
        ([target_graph(n, k) for n in (8, 64, 2) for k in (6, 1)] + [target_graph(4, 3)], ((0, 64), (2, 4), (5, 64))),
    ],
    ids=["fallen back to piecewise graphs", "one kind for all batches", "for draft lengths"],
)
def test_the_graphs_of_the_target_are_those_that_were_captured(
    graphs: list[SimpleNamespace], found: tuple[tuple[int, int], ...]
) -> None:
    runner = SimpleNamespace(cudagraph_manager=SimpleNamespace(graphs=graphs))
    assert step_clock.captured_graphs(runner, SimpleNamespace()).target == found
