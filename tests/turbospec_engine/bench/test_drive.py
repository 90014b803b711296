"""The client in front of the engine keeps to the load's arrivals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from turbospec_engine import RequestOutput, SamplingParams
from turbospec_engine.bench.engine_contender import drive
from turbospec_engine.bench.workloads import BenchRequest, Load

STEP_SECONDS = 0.002


class FakeEngine:
    """Emits a token a step for every request it has."""

    def __init__(self) -> None:
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
        time.sleep(STEP_SECONDS)
        now = time.perf_counter()
        outputs = []
        for request_id in list(self.left):
            self.left[request_id] -= 1
            finished = not self.left[request_id]
            outputs.append(RequestOutput(request_id, (7,), "", finished, "length" if finished else None, now))
            if finished:
                del self.left[request_id]
        return outputs


def requests(count: int, tokens: int = 3) -> tuple[BenchRequest, ...]:
    return tuple(BenchRequest((1, 2, 3), SamplingParams(max_tokens=tokens)) for _ in range(count))


@pytest.fixture
def engine() -> Any:
    return FakeEngine()


def test_closed_loop_never_exceeds_its_concurrency(engine: Any) -> None:
    records = drive(engine, Load(requests(7), max_in_flight=3))

    assert engine.most_in_flight == 3
    assert [len(record.token_ids) for record in records] == [3] * 7


def test_closed_loop_counts_the_first_token_from_submission(engine: Any) -> None:
    records = drive(engine, Load(requests(3), max_in_flight=1))

    assert all(record.time_to_first_token < 3 * STEP_SECONDS for record in records)
    assert records[1].sent >= records[0].output_times[-1]


def test_poisson_counts_the_first_token_from_arrival(engine: Any) -> None:
    began = time.perf_counter()
    # The second arrives while the first step runs and has to wait for it.
    records = drive(engine, Load(requests(2), arrivals=(0.01, 0.0105)))

    assert records[0].sent >= began + 0.01
    assert records[1].sent - records[0].sent == pytest.approx(0.0005)
    assert records[1].time_to_first_token > 1.5 * STEP_SECONDS
