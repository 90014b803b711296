from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.turbospec_sim.replay.traces import written
from tests.turbospec_sim.scenarios import closed, scenario
from turbospec.observability.trace import TraceStep
from turbospec_sim.replay.recording import record
from turbospec_sim.replay.replay import Replay
from turbospec_sim.replay.reused_plans import with_reused_plan_steps

LONGEST_GAP = 16
HARD = {"process": "iid", "rate": 0.05}


def held(steps: Sequence[TraceStep]) -> list[TraceStep]:
    """The lines of an engine that keeps a plan of no drafts while its requests decode, and says what it skipped."""
    lines: list[TraceStep] = []
    number, tokens, seconds = 0, 0, 0.0
    for step in steps:
        before = lines[-1] if lines else None
        kept = (
            before is not None
            and number < LONGEST_GAP
            and step is not steps[-1]
            and not (any(before.drafted) or any(step.drafted) or step.prefill_tokens)
            and set(step.request_ids) <= set(before.request_ids)
        )
        if kept:
            number, tokens, seconds = number + 1, tokens + sum(step.emitted), seconds + step.step_seconds
        else:
            lines.append(
                replace(step, reused_plan_steps=number, reused_plan_tokens=tokens, reused_plan_seconds=seconds)
            )
            number, tokens, seconds = 0, 0, 0.0
    return lines


@pytest.fixture(params=["off", "adaptive"])
def steps(request: pytest.FixtureRequest, tmp_path: Path) -> list[TraceStep]:
    made = scenario(server__emit="after_draft", rates=[60.0], server__max_num_seqs=4, chat__acceptance=HARD)
    return written(tmp_path / "trace.jsonl", made, request.param)


def test_steps_without_a_line_are_put_back(steps: list[TraceStep]) -> None:
    lines = held(steps)
    assert len(lines) < 0.8 * len(steps)
    filled = with_reused_plan_steps(lines)
    assert [step.step for step in filled] == [step.step for step in steps]
    for name in ("request_ids", "phase", "class_ids", "emitted_tokens", "tokens_left", "emitted", "tokens_batched"):
        assert [getattr(step, name) for step in filled] == [getattr(step, name) for step in steps], name
    assert [step.now for step in filled] == pytest.approx([step.now for step in steps], abs=0.02)
    assert sum(step.step_seconds for step in filled) == pytest.approx(sum(step.step_seconds for step in steps))
    known, told = record(steps), record(filled)
    for name in ("output_tokens", "prompt_tokens", "max_tokens"):
        assert getattr(told, name).tolist() == getattr(known, name).tolist()
    assert told.begun_before == 0


def test_without_them_tokens_are_missing(steps: list[TraceStep]) -> None:
    assert record(held(steps)).output_tokens.sum() < 0.95 * record(steps).output_tokens.sum()


def test_a_replay_has_them(tmp_path: Path) -> None:
    made = closed(4, server__emit="before_draft", chat__acceptance=HARD)
    steps = written(tmp_path / "trace.jsonl", made, "adaptive")
    whole, told = Replay(steps, concurrency=4), Replay(held(steps), concurrency=4)
    for figure in ("total_output_tokens", "output_throughput", "mean_draft_length"):
        assert told.recorded[figure] == pytest.approx(whole.recorded[figure], rel=0.02)
        assert told.as_recorded()[figure] == pytest.approx(told.recorded[figure], rel=0.02)


def a_line(step: TraceStep, number: int, rows: Sequence[tuple[int, int, int]], **fields: object) -> TraceStep:
    """A line at 10 ms a step; of each request the number, the tokens emitted and those left."""
    numbers, emitted, left = ([row[place] for row in rows] for place in range(3))
    size = len(rows)
    zeros = dict.fromkeys(("class_ids", "drafter_lag_tokens", "planned", "proposed", "drafted", "accepted"), [0] * size)
    return replace(
        step, step=number, now=number / 100, step_seconds=0.01, request_ids=numbers, emitted_tokens=emitted,
        tokens_left=left, phase=[2] * size, context_tokens=[10 + each for each in emitted], draft_limits=[5] * size,
        emitted=[1] * size, truncated=[False] * size, **zeros, **fields,
    )  # fmt: skip


def test_tokens_go_to_those_that_came_and_those_that_went(steps: list[TraceStep]) -> None:
    """1 goes on, 2 ends, 3 comes. Older traces count four of the five steps: not the one with the prompt of 3."""
    before = a_line(steps[0], 10, [(1, 5, 90), (2, 5, 90)])
    after = a_line(
        steps[0], 16, [(1, 11, 84), (3, 3, 40)], reused_plan_steps=4, reused_plan_tokens=8, reused_plan_seconds=0.04
    )
    first, *filled, last = with_reused_plan_steps([after, before])
    assert (first, last) == (before, after)
    assert [step.step for step in filled] == [11, 12, 13, 14, 15]
    assert [step.request_ids for step in filled] == [[1, 2], [1, 2], [1, 2], [1, 3], [1, 3]]
    assert [step.emitted_tokens[0] for step in filled] == [6, 7, 8, 9, 10]
    assert filled[3].emitted_tokens == [9, 1]
    assert filled[3].context_tokens == [19, 11]
    assert [step.phase[1] for step in filled[3:]] == [1, 2]
    assert [step.step_seconds for step in filled] == pytest.approx([0.01] * 5)


def test_first_tokens_of_those_that_came_are_not_of_those_that_went(steps: list[TraceStep]) -> None:
    """As in the test before, in a trace that counts the step with the prompt of 3 too."""
    before = a_line(steps[0], 10, [(1, 5, 90), (2, 5, 90)])
    after = a_line(
        steps[0], 16, [(1, 11, 84), (3, 3, 40)],
        reused_plan_steps=5, reused_plan_tokens=11, reused_plan_prefill_tokens=4, reused_plan_seconds=0.05,
    )  # fmt: skip
    filled = with_reused_plan_steps([before, after])[1:-1]
    assert [step.request_ids for step in filled] == [[1, 2], [1, 2], [1, 2], [1, 3], [1, 3]]


def test_prompts_are_divided_among_the_steps(steps: list[TraceStep]) -> None:
    before = a_line(steps[0], 10, [(1, 5, 90)])
    after = a_line(
        steps[0], 14, [(1, 9, 86)],
        reused_plan_steps=3, reused_plan_tokens=4, reused_plan_prefill_tokens=30, reused_plan_seconds=0.06,
    )  # fmt: skip
    filled = with_reused_plan_steps([before, after])[1:-1]
    assert [(step.prefill_tokens, step.tokens_batched, step.step_seconds) for step in filled] == [(10, 11, 0.02)] * 3


def test_nobody_gets_more_than_the_limit(steps: list[TraceStep]) -> None:
    before = a_line(steps[0], 10, [(1, 5, 90), (2, 5, 3)])
    after = a_line(steps[0], 14, [(1, 9, 86)], reused_plan_steps=3, reused_plan_tokens=6, reused_plan_seconds=0.03)
    assert [step.request_ids for step in with_reused_plan_steps([before, after])[1:-1]] == [[1, 2], [1, 2], [1]]


def test_an_engine_that_was_idle_ran_its_steps_before(steps: list[TraceStep]) -> None:
    before = a_line(steps[0], 10, [(1, 5, 90)])
    after = a_line(steps[0], 14, [(2, 1, 90)], reused_plan_steps=3, reused_plan_tokens=3, reused_plan_seconds=0.03)
    filled = with_reused_plan_steps([before, replace(after, now=60.0)])[1:-1]
    assert [step.now for step in filled] == pytest.approx([0.11, 0.12, 0.13])
