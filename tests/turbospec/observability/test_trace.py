from __future__ import annotations

import io
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.errors import UserError
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView
from turbospec.observability.summary import Summary
from turbospec.observability.trace import DecisionTrace, TraceStep, read_trace

Step = tuple[StepView, StepPlan, StepOutcome, float]


def a_step(
    number: int = 0,
    drafted: tuple[int, ...] = (4, 0, 4),
    accepted: tuple[int, ...] = (2, 0, 4),
    truncated: tuple[bool, ...] = (False, False, False),
    **plan: Any,
) -> Step:
    """A step of three requests, drafted as planned."""
    view = make_view(len(drafted), step=number, now=1.0 + number, max_draft=7, waiting_requests=2)
    outcome = make_outcome(view, drafted, accepted, truncated=np.array(truncated))
    return view, StepPlan(np.array(drafted), **plan), outcome, 0.0001


def summarised(*steps: Step) -> Summary:
    summary = Summary()
    for step in steps:
        summary.add(TraceStep.from_step(*step))
    return summary


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trace.jsonl"
    steps = [a_step(0, reason="λ=12.5 says 4"), a_step(1, predicted_tokens=3.5, predicted_seconds=0.009, probe=True)]
    with DecisionTrace(path) as trace:
        for step in steps:
            trace.on_step(*step)
    assert list(read_trace(path)) == [TraceStep.from_step(*step) for step in steps]
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["format"] == 2
    assert first["planned"] == [4, 0, 4]
    assert first["predicted_seconds"] is None
    assert first["reason"] == "λ=12.5 says 4"
    assert (second["predicted_seconds"], second["probe"]) == (0.009, True)


def after_reused_plan(step: Step, steps: int, tokens: int, seconds: float) -> Step:
    view, plan, outcome, decision_seconds = step
    outcome = replace(outcome, reused_plan_steps=steps, reused_plan_tokens=tokens, reused_plan_seconds=seconds)
    return view, plan, outcome, decision_seconds


def test_traces_of_format_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*after_reused_plan(a_step(), 5, 15, 0.25))
    (written,) = read_trace(path)
    text = path.read_text().replace("drafter_lag_tokens", "stale_tokens").replace('"reused_plan_', '"unplanned_')
    path.write_text(text.replace('"format":2', '"format":1'))
    (read,) = read_trace(path)
    assert read == replace(written, format=1)


def test_steps_that_reuse_a_plan_are_kept_and_older_traces_have_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*after_reused_plan(a_step(), 5, 15, 0.25))
    (step,) = read_trace(path)
    assert (step.reused_plan_steps, step.reused_plan_tokens, step.reused_plan_seconds) == (5, 15, 0.25)
    line = {name: value for name, value in json.loads(path.read_text()).items() if not name.startswith("reused_plan")}
    path.write_text(json.dumps(line) + "\n")
    (step,) = read_trace(path)
    assert (step.reused_plan_steps, step.reused_plan_tokens, step.reused_plan_seconds) == (0, 0, 0.0)


def test_files_stay_within_their_size_and_number(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path, max_bytes=5_000, backups=2) as trace:
        for number in range(60):
            trace.on_step(*a_step(number))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["trace.jsonl", "trace.jsonl.1", "trace.jsonl.2"]
    assert all(file.stat().st_size <= 5_000 for file in tmp_path.iterdir())
    kept = [step.step for name in (".2", ".1", "") for step in read_trace(path.with_name(path.name + name))]
    assert kept == list(range(60 - len(kept), 60)), "the newest steps, in order and without a gap"


def test_an_earlier_trace_becomes_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for number in range(2):
        with DecisionTrace(path) as trace:
            trace.on_step(*a_step(number))
    assert [step.step for step in read_trace(path)] == [1]
    assert [step.step for step in read_trace(tmp_path / "trace.jsonl.1")] == [0]


def test_a_path_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write the trace"):
        DecisionTrace(tmp_path)


def test_a_step_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        for number in range(2):
            trace.on_step(*a_step(number))
            assert [step.step for step in read_trace(path)] == [*range(number + 1)]


def test_steps_after_the_end_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = DecisionTrace(path)
    trace.on_step(*a_step(0))
    trace.close()
    trace.on_step(*a_step(1))
    assert [step.step for step in read_trace(path)] == [0]


def test_without_backups_an_earlier_trace_is_overwritten_and_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for number in range(2):
        with DecisionTrace(path, max_bytes=1_000, backups=0) as trace:
            for step in range(10 * number, 10 * number + 5):
                trace.on_step(*a_step(step))
    assert [*tmp_path.iterdir()] == [path]
    assert [step.step for step in read_trace(path)] == [*range(10, 15)]


def test_a_program_that_configures_logging_does_not_end_the_trace(tmp_path: Path) -> None:
    """`dictConfig`, which vLLM and uvicorn call, closes every handler that there is."""
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step(0))
        logging.shutdown([reference for reference in logging._handlerList if reference() is trace._file])
        trace.on_step(*a_step(1))
    assert [step.step for step in read_trace(path)] == [0, 1]


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_disk_that_fails_ends_the_trace_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = DecisionTrace(tmp_path / "trace.jsonl")
    assert trace._file is not None
    trace._file.stream = FullDisk()
    with caplog.at_level(logging.WARNING, logger="turbospec"):
        for number in range(3):
            trace.on_step(*a_step(number))
        trace.close()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert capsys.readouterr().err == "", "`logging` prints tracebacks of its own"


def test_a_disk_that_fails_at_the_end_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = DecisionTrace(tmp_path / "trace.jsonl")
    assert trace._file is not None
    trace._file.stream = FullDisk()
    trace.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text


def test_a_backup_that_cannot_be_made_ends_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "trace.jsonl"
    trace = DecisionTrace(path, max_bytes=2_000)
    monkeypatch.setattr(os, "rename", refuse)
    with caplog.at_level(logging.WARNING, logger="turbospec"):
        for number in range(10):
            trace.on_step(*a_step(number))
    assert "Permission denied" in caplog.text
    assert len(caplog.records) == 1
    assert path.stat().st_size <= 2_000


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Invalid JSON"),
        ('{"format": 3}', "format"),
        ("", "Invalid JSON"),
        ("[1]", "object"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=rf"trace\.jsonl:2: .*{why}"):
        list(read_trace(path))
    told: list[tuple[int, str]] = []
    assert len(list(read_trace(path, lambda number, what: told.append((number, what))))) == 1
    assert told[0][0] == 2


def test_rows_of_different_lengths_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step())
    path.write_text(path.read_text().replace('"planned":[4,0,4]', '"planned":[4,0]'))
    with pytest.raises(UserError, match="different lengths"):
        list(read_trace(path))


def test_a_missing_trace_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the trace"):
        list(read_trace(tmp_path / "none"))


def test_positions_after_the_first_rejection_are_unobserved() -> None:
    summary = summarised(a_step(drafted=(4, 4, 4), accepted=(0, 2, 4)))
    np.testing.assert_allclose(summary.acceptance(), [2 / 3, 1, 1 / 2, 1])
    assert summary.document()["observations"] == [3, 2, 2, 1]


def test_a_truncated_row_shows_no_failure() -> None:
    summary = summarised(a_step(drafted=(4, 4), accepted=(2, 0), truncated=(True, True)))
    np.testing.assert_allclose(summary.acceptance(), [1, 1, np.nan, np.nan])
    assert summary.document()["acceptance"] == [1, 1, None, None]


def test_the_summary_adds_steps_up() -> None:
    summary = summarised(
        a_step(0, reason="goodput 310.5 at 4", predicted_seconds=0.011),
        a_step(1, reason="goodput 295 at 4", predicted_seconds=0.008, probe=True),
        a_step(
            2, drafted=(0, 0), accepted=(0, 0), truncated=(False, False), reason="guard: the policy failed, fallback"
        ),
    )
    document = summary.document()
    assert (document["steps"], document["requests"]) == (3, 3)
    assert (document["drafted_tokens"], document["accepted_tokens"], document["emitted_tokens"]) == (16, 12, 20)
    assert document["accepted_length"] == 1 + 12 / 4
    assert document["draft_lengths"] == {"0": 4, "4": 4}
    assert document["mean_draft_length"] == 2
    assert document["reasons"] == {"goodput # at #": 2, "guard: the policy failed, fallback": 1}
    assert document["guard_fallbacks"] == 1
    assert document["predicted_steps"] == 2
    assert document["prediction_error_median"] == pytest.approx(0.15)
    assert (document["probe_steps"], document["probe_time_share"]) == (1, pytest.approx(1 / 3))
    assert document["seconds"]["step"] == pytest.approx(0.03)


def test_the_summary_counts_steps_that_reuse_a_plan() -> None:
    document = summarised(a_step(), after_reused_plan(a_step(6), 5, 15, 0.25)).document()
    assert (document["steps"], document["reused_plan_steps"]) == (7, 5)
    assert document["emitted_tokens"] == 2 * 9 + 15
    assert document["draft_lengths"] == {"0": 2 + 15, "4": 4}
    assert document["mean_draft_length"] == pytest.approx(16 / 21)
    assert document["seconds"]["step"] == pytest.approx(0.02 + 0.25)
    assert document["seconds"]["verify"] == pytest.approx(0.014 + 0.25)


def test_a_request_in_prefill_had_no_draft_length_to_choose() -> None:
    view, plan, outcome, seconds = a_step(drafted=(0,), accepted=(0,), truncated=(False,))
    view.phase[0] = Phase.PREFILL
    assert summarised((view, plan, outcome, seconds)).document()["draft_lengths"] == {}
