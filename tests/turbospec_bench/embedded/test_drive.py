"""The client in front of the engine keeps to the load's arrivals. Time is simulated: a step takes one second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from turbospec_bench.embedded import contender as engine_contender
from turbospec_bench.embedded.contender import drive
from turbospec_bench.embedded.workloads import BenchRequest, Load
from turbospec_engine import RequestOutput, SamplingParams


class Clock:
    """Stands in for the `time` module."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeEngine:
    """Emits a token a step for every request it has."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.left: dict[str, int] = {}
        self.added = 0
        self.most_in_flight = 0

    def add_request(self, prompt: Sequence[int], params: SamplingParams) -> str:
        request_id = str(self.added)
        self.added += 1
        self.left[request_id] = params.max_tokens
        self.most_in_flight = max(self.most_in_flight, len(self.left))
        return request_id

    def step(self) -> list[RequestOutput]:
        self.clock.sleep(1.0)
        outputs: list[RequestOutput] = []
        for request_id in list(self.left):
            self.left[request_id] -= 1
            finished = not self.left[request_id]
            reason = "length" if finished else None
            outputs.append(RequestOutput(request_id, (7,), "", finished, reason, self.clock.now))
            if finished:
                del self.left[request_id]
        return outputs


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = Clock()
    monkeypatch.setattr(engine_contender, "time", clock)
    return FakeEngine(clock)


def requests(count: int, tokens: int = 3) -> tuple[BenchRequest, ...]:
    return tuple(BenchRequest((1, 2, 3), SamplingParams(max_tokens=tokens)) for _ in range(count))


def test_closed_loop_never_exceeds_its_concurrency(engine: Any) -> None:
    records = drive(engine, Load(requests(7), max_in_flight=3))

    assert engine.most_in_flight == 3
    assert [len(record.token_ids) for record in records] == [3] * 7


def test_closed_loop_counts_the_first_token_from_submission(engine: Any) -> None:
    records = drive(engine, Load(requests(3), max_in_flight=1))

    assert [record.sent for record in records] == [100, 103, 106]
    assert [record.time_to_first_token for record in records] == [1, 1, 1]


def test_poisson_counts_the_first_token_from_arrival(engine: Any) -> None:
    # The second arrives while a step runs and has to wait for it; the third when nothing is left to do.
    records = drive(engine, Load(requests(3), arrivals=(5.0, 5.25, 20.0)))

    assert [record.sent for record in records] == [105, 105.25, 120]
    assert [record.time_to_first_token for record in records] == pytest.approx([1, 1.75, 1])
