from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.turbospec_sim.replay.traces import written
from tests.turbospec_sim.scenarios import scenario, state_of
from turbospec import UserError
from turbospec.telemetry.trace import TraceStep
from turbospec_sim.replay.queueing import arrivals
from turbospec_sim.replay.recording import record
from turbospec_sim.replay.server import drafter_of, server_of

BUSY = {"rates": [60.0], "server__max_num_seqs": 4}


@pytest.fixture
def steps(tmp_path: Path) -> list[TraceStep]:
    made = scenario(server__emit="before_draft", drafter={"max_draft": 5, "batch": False}, **BUSY)
    return written(tmp_path / "trace.jsonl", made, "static-3")


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_requests_are_recovered(emit: str, tmp_path: Path) -> None:
    made = scenario(server__emit=emit, **BUSY)
    steps = written(tmp_path / "trace.jsonl", made, "static-3")
    offered = state_of(made).offered
    recording = record(steps)
    known = np.isin(np.arange(60), sorted({number for step in steps for number in step.request_ids}))
    more = offered["output_tokens"] > 1  # a single token may come and go unseen by a controller
    assert (recording.size == 60) or emit == "after_draft"
    seen = offered[known & more]
    kept = recording.output_tokens > 1
    assert recording.output_tokens[kept].tolist() == seen["output_tokens"].tolist()
    assert recording.prompt_tokens[kept].tolist() == seen["prompt_tokens"].tolist()
    assert recording.cut_short == recording.begun_before == 0


def test_arrivals_are_early_enough_and_exact_for_the_head_of_a_queue(steps: list[TraceStep]) -> None:
    offered = state_of(scenario(**BUSY)).offered
    found = record(steps).arrivals
    late = found - (offered["sent"] - offered["sent"][0])
    assert late.min() > -0.05
    assert np.quantile(np.abs(late), 0.9) < 0.05
    first_seen = {}
    for step in steps:
        for number in step.request_ids:
            first_seen.setdefault(number, step.now)
    assert max(first_seen[n] - offered["sent"][n] for n in range(60)) > 0.5  # else this shows nothing


def test_a_queue_whose_head_may_have_come_back_tells_nothing(steps: list[TraceStep]) -> None:
    def three(second: list[int]) -> list[TraceStep]:
        rows = [[1, 2], second, [1, 2, 3]]
        return [
            replace(
                steps[0],
                now=10.0 * line,
                waiting_requests=1,
                waiting_seconds=4.0,
                **{
                    name: numbers if name == "request_ids" else [0] * len(numbers)
                    for name in (
                        "request_ids", "phase", "class_ids", "context_tokens", "emitted_tokens", "tokens_left",
                        "stale_tokens", "draft_limits", "planned", "proposed", "drafted", "accepted", "emitted",
                        "truncated",
                    )
                },
            )
            for line, numbers in enumerate(rows)
        ]  # fmt: skip

    assert arrivals(three([1, 2])[1:], [0, 0, 1], [1, 1, 1]).tolist() == [6.0, 6.0, 6.0]
    assert arrivals(three([1])[1:], [0, 0, 1], [1, 1, 1]).tolist() == [10.0, 10.0, 20.0]


def test_tokens_are_known_as_they_were_judged(steps: list[TraceStep]) -> None:
    tokens = record(steps).tokens
    for step in steps:
        for row, number in enumerate(step.request_ids):
            at = tokens.lines[number, 0] + step.emitted_tokens[row]
            drafted, accepted = step.drafted[row], step.accepted[row]
            if drafted:
                assert tokens.drafted[at] == drafted
                assert tokens.certain[at : at + accepted].tolist() == list(range(1, accepted + 1))
                if accepted < drafted and not step.truncated[row]:
                    assert tokens.possible[at + accepted] == accepted


def test_a_trace_that_begins_and_ends_midway_says_so(steps: list[TraceStep]) -> None:
    middle = record(steps[30:60])
    assert middle.begun_before > 0
    assert middle.cut_short > 0
    assert middle.prompt_tokens.min() > 0
    emitted = sum(sum(step.emitted) for step in steps[30:60])
    assert int(middle.output_tokens.sum()) == pytest.approx(emitted, abs=middle.begun_before)


@pytest.mark.parametrize(
    ("drafter", "emit"),
    [
        ({"max_draft": 5, "batch": False}, "before_draft"),
        ({"max_draft": 5, "batch": True}, "after_draft"),
        ({"max_draft": 5, "batch": True, "constant_first_pass": True}, "after_draft"),
        ({"max_draft": 4, "batch": True, "kind": "parallel"}, "after_draft"),
    ],
)
def test_the_engine_is_recognised(drafter: dict[str, object], emit: str, tmp_path: Path) -> None:
    made = scenario(drafter=drafter, server__emit=emit, **BUSY)
    steps = written(tmp_path / "trace.jsonl", made, "static-3")
    found = drafter_of(steps)
    assert found.model_dump() == made.drafter.model_dump()
    server = server_of(steps, record(steps))
    assert (server.max_num_seqs, server.emit) == (4, emit)


def test_an_engine_that_nobody_waited_for_has_no_cap(tmp_path: Path) -> None:
    steps = written(tmp_path / "trace.jsonl", scenario(rates=[0.5], workload__requests=5), "off")
    assert server_of(steps, record(steps)).max_num_seqs == 1024


def test_traces_that_cannot_be_replayed_are_named(steps: list[TraceStep]) -> None:
    with pytest.raises(UserError, match="comes twice"):
        record([*steps, *steps])
    with pytest.raises(UserError, match="took any time"):
        record([replace(step, step_seconds=0.0) for step in steps])
    with pytest.raises(UserError, match="emitted a token"):
        record(steps[:1] if not any(steps[0].emitted) else [replace(steps[0], emitted=[0] * len(steps[0].emitted))])
