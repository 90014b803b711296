from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import math
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec.errors import UserError
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView
from turbospec.observability.summary import OTHER_REASONS, Summary
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


def test_an_earlier_trace_stays_until_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("earlier\n")
    with DecisionTrace(path):
        assert [*tmp_path.iterdir()] == [path]
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "earlier\n"


def test_a_trace_without_a_step_leaves_no_file(tmp_path: Path) -> None:
    with DecisionTrace(tmp_path / "trace.jsonl"):
        pass
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("where", [".", "file/trace.jsonl", "pipe", "/dev/null", "/dev/stdout", "x" * 300, "a\0b"])
def test_a_path_that_cannot_be_written_is_the_users_mistake(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("a file\n")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError):
        DecisionTrace(tmp_path / where)
    assert sorted(tmp_path.iterdir()) == before


def test_the_target_of_a_symbolic_link_is_written(tmp_path: Path) -> None:
    link, target = tmp_path / "trace.jsonl", tmp_path / "disk" / "target.jsonl"
    target.parent.mkdir()
    link.symlink_to(target)
    for number in range(2):
        with DecisionTrace(link) as trace:
            trace.on_step(*a_step(number))
    assert link.is_symlink()
    assert [step.step for step in read_trace(link)] == [1]
    assert [step.step for step in read_trace(tmp_path / "disk" / "target.jsonl.1")] == [0]


def test_a_reason_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step(reason="\ud800\0\n[red]" + "x" * 10**6))
    (step,) = read_trace(path)
    assert step.reason.startswith("\\ud800\0\n[red]xxx")
    assert len(step.reason) < 1100


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


class FailingDisk(io.FileIO):
    """Full after a few bytes of the third line; does not even close well."""

    lines = 0

    def write(self, data: Any) -> int:
        self.lines += 1
        if self.lines == 3:
            return super().write(bytes(data[:10]))
        if self.lines > 3:
            raise OSError(28, "No space left on device")
        return super().write(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            raise OSError(5, "Input/output error")


def on_failing_disk(path: Path) -> DecisionTrace:
    trace = DecisionTrace(path)
    assert trace._file is not None
    trace._file._file = FailingDisk(path, "ab")
    return trace


def test_a_disk_that_fails_ends_the_trace_with_one_warning_and_a_whole_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    trace = on_failing_disk(path)
    with caplog.at_level(logging.WARNING, logger="turbospec"):
        for number in range(5):
            trace.on_step(*a_step(number))
        trace.close()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert capsys.readouterr().err == ""
    assert [step.step for step in read_trace(path)] == [0, 1]


def test_a_disk_that_fails_at_the_end_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = on_failing_disk(tmp_path / "trace.jsonl")
    trace.on_step(*a_step())
    trace.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Input/output error" in caplog.text


def test_a_backup_that_cannot_be_made_ends_the_trace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "trace.jsonl"
    (tmp_path / "trace.jsonl.1").mkdir()
    with caplog.at_level(logging.WARNING, logger="turbospec"), DecisionTrace(path, max_bytes=2_000, backups=1) as trace:
        for number in range(10):
            trace.on_step(*a_step(number))
    assert "cannot write the trace" in caplog.text
    assert len(caplog.records) == 1
    assert 0 < path.stat().st_size <= 2_000


def test_only_one_process_writes_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path, max_bytes=2_000) as trace:
        for number in range(10):
            with pytest.raises(UserError, match="another process writes it"):
                DecisionTrace(path)
            trace.on_step(*a_step(number))
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step(10))
    assert [step.step for step in read_trace(path)] == [10]


def test_a_file_system_without_locks_has_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step(0))
    assert [step.step for step in read_trace(path)] == [0]


def test_a_file_that_moves_before_it_is_locked_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer rotates it at that moment; the lock is then that of a backup."""
    path, flock = tmp_path / "trace.jsonl", fcntl.flock
    path.write_text("of another process\n")

    def rotate_first(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        path.rename(tmp_path / "trace.jsonl.1")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", rotate_first)
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step(0))
    assert [step.step for step in read_trace(path)] == [0]
    assert (tmp_path / "trace.jsonl.1").read_text() == "of another process\n"
    assert len([*tmp_path.iterdir()]) == 2


def test_a_file_that_another_process_makes_during_rotation_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, replace_file = tmp_path / "trace.jsonl", os.replace

    def other_begins(source: str, target: str) -> None:
        replace_file(source, target)
        path.write_text("of another process\n")

    monkeypatch.setattr(os, "replace", other_begins)
    with DecisionTrace(path, max_bytes=2_000, backups=1) as trace:
        for number in range(10):
            trace.on_step(*a_step(number))
    assert path.read_text() == "of another process\n"
    assert [step.step for step in read_trace(tmp_path / "trace.jsonl.1")] == [0, 1]
    assert "another process writes it" in caplog.text


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


def test_tokens_that_are_appended_to_nothing_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step())
    line = json.loads(path.read_text())
    for appended, sound in ((0, True), (line["drafted"][0] - 1, True), (line["drafted"][0], False)):
        path.write_text(json.dumps(line | {"appended": [appended, 0, 0]}) + "\n")
        with nullcontext() if sound else pytest.raises(UserError, match="appended to no draft"):
            assert len(list(read_trace(path))) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", 10**12 * 2),
        ("step", -1),
        ("step", True),
        ("step", "3"),
        ("now", math.nan),
        ("step_seconds", -1.0),
        ("step_seconds", math.inf),
        ("step_seconds", 1e300),
        ("predicted_seconds", math.nan),
        ("emitted", [1, -1, 1]),
        ("drafted", [10**6, 0, 4]),
        ("accepted", [5, 0, 4]),
        ("phase", [2, 7, 2]),
        ("max_draft", 10**9),
        ("request_ids", [10**30, 1, 2]),
        ("request_ids", [0] * 70_000),
        ("draft_rows", [1] * 1000),
        ("reused_plan_tokens", 10**13),
    ],
)
def test_values_that_no_step_has_are_broken(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as trace:
        trace.on_step(*a_step())
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}) + "\n")
    with pytest.raises(UserError, match=r"trace\.jsonl:1: not a step") as refused:
        list(read_trace(path))
    assert len(str(refused.value)) < 300


def test_a_missing_trace_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none: no such trace; write one with"):
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


def test_runs_in_one_summary_are_told_apart_by_step_numbers_that_do_not_rise() -> None:
    document = summarised(a_step(0), a_step(1), a_step(0), a_step(0)).document()
    assert (document["steps"], document["requests"]) == (4, 3 * 3)
    assert document["reasons"] == {"(none)": 4}
    assert document["accepted_length"] == 1 + 24 / 8
    expected = {"draft": 0.008, "verify": 0.028, "controller": 0.0004, "step": 0.04}
    assert document["seconds"] == pytest.approx(expected)
    assert "sources" not in document


def test_the_accepted_length_counts_drafts_of_one_token() -> None:
    document = summarised(a_step(drafted=(1, 2), accepted=(0, 1), truncated=(False, False))).document()
    assert document["accepted_length"] == 1.5


def test_a_prediction_that_is_too_long_has_a_bias_above_0() -> None:
    document = summarised(a_step(predicted_seconds=0.011)).document()
    assert document["prediction_bias"] == pytest.approx(0.1)
    document = summarised(a_step()).document()
    assert (document["prediction_error_median"], document["prediction_bias"]) == (None, None)


def test_a_summary_of_no_step_has_all_figures() -> None:
    document = summarised().document()
    assert (document["acceptance_rate"], document["accepted_length"], document["mean_draft_length"]) == (0, 1, 0)
    assert (document["prediction_error_median"], document["probe_time_share"]) == (None, 0)


def test_the_summary_adds_up_what_each_source_drafted() -> None:
    summary, step = Summary(), replace(TraceStep.from_step(*a_step()), sources=[0, 0, 1])
    for number in range(2):
        summary.add(replace(step, step=number))
    half = {"drafts": 2, "drafted_tokens": 8, "accepted_tokens": 4, "acceptance_rate": 0.5, "accepted_length": 3.0}
    whole = {"drafts": 2, "drafted_tokens": 8, "accepted_tokens": 8, "acceptance_rate": 1.0, "accepted_length": 5.0}
    assert summary.document()["sources"] == {"drafter": half, "lookup": whole}


def test_positions_are_added_to_the_summary_as_drafts_become_longer() -> None:
    short, long = (a_step(step, drafted=each, accepted=each) for step, each in enumerate([(1, 0, 0), (3, 1, 0)]))
    assert summarised(short, long).document()["observations"] == [3, 1, 1]


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


def test_reasons_without_end_are_counted_together() -> None:
    steps = [a_step(number, reason="x" * 500 + chr(0x4E00 + number)) for number in range(2)]
    steps += [a_step(number, reason=chr(0x4E00 + number)) for number in range(1500)]
    reasons = summarised(*steps).document()["reasons"]
    assert reasons["x" * 200] == 2
    assert reasons[OTHER_REASONS] == 501
    assert len(reasons) == 1001


def test_a_step_that_was_not_measured_has_no_prediction_error() -> None:
    view, plan, outcome, seconds = a_step(predicted_seconds=1.0)
    steps = [(view, plan, replace(outcome, step_seconds=measured), seconds) for measured in (0.0, 5e-324)]
    summary = Summary()
    for step in steps:
        summary.add(replace(TraceStep.from_step(*step), step_seconds=step[2].step_seconds))
    assert summary.document()["predicted_steps"] == 0
