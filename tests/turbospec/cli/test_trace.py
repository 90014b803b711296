from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.turbospec.factories import make_outcome, make_view
from turbospec import UserError
from turbospec.cli import trace_files
from turbospec.cli.trace import trace
from turbospec.interface import LookupView, StepPlan
from turbospec.observability.trace import DecisionTrace


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Ten steps of one request with K = 3, of which 2 are accepted; before the last, two steps reuse a plan."""
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as writer:
        for step in range(10):
            view = make_view(1, step=step, max_draft=7)
            plan = StepPlan(np.array([3]), 2.8, 0.011, f"K 3 is worth {step} tokens/s")
            reused = {"reused_plan_steps": 2, "reused_plan_tokens": 2, "reused_plan_seconds": 0.01} if step == 9 else {}
            writer.on_step(view, plan, make_outcome(view, 3, 2, **reused), 1e-4)
    return path


def test_tables(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace([written])
    shown = capsys.readouterr()
    assert shown.err == ""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.out.splitlines()]
    for row in (
        ["steps", "12"],
        ["of these reusing a plan", "2"],
        ["tokens emitted", "32"],
        ["tokens drafted", "30"],
        ["tokens accepted", "20"],
        ["mean K", "2.50"],
        ["accepted length", "3.00"],
        ["step time", "0.11 s"],
        ["in draft", "18.2%"],
        ["predicted step time, bias", "+10.0%"],
        ["guard fallbacks", "0"],
        ["0", "2", "17%", "", ""],
        ["3", "10", "83%", "10", "0%"],
        ["K # is worth # tokens/s", "10"],
    ):
        assert row in rows


def test_json_alone_is_on_stdout(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written.write_text(written.read_text() + "{\n[]\n")
    trace([written], as_json=True)
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["steps"], document["broken_lines"]) == (12, 2)
    assert document["acceptance"] == [1, 1, 0]
    assert "trace.jsonl:11" in shown.err.replace("\n", "")
    assert "broken lines skipped: 2" in shown.err


def test_several_files_count_together(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each engine numbers its requests from 0."""
    other = tmp_path / "trace-1.jsonl"
    other.write_bytes(written.read_bytes())
    trace([written, other], as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["steps"], document["requests"]) == (24, 2)
    backup = tmp_path / "trace.jsonl.1"
    lines = written.read_text().splitlines(keepends=True)
    backup.write_text("".join(lines[:4]))
    written.write_text("".join(lines[4:]))
    trace([written, backup], as_json=True)  # as a shell sorts them
    document = json.loads(capsys.readouterr().out)
    assert (document["steps"], document["requests"]) == (12, 1)
    with pytest.raises(UserError, match="named twice; its steps would count twice"):
        trace([written, tmp_path / "." / "trace.jsonl"])


def test_no_step_is_lost_where_the_trace_becomes_a_backup_meanwhile(written: Path) -> None:
    lines = written.read_text().splitlines(keepends=True)
    older, new = Path(f"{written}.1"), "".join(lines[8:])
    older.write_text("".join(lines[:4]))
    written.write_text("".join(lines[4:8]))
    steps = trace_files.steps_of([older, written], trace_files.BrokenLines())
    read = [next(steps).step]
    older.replace(f"{written}.2")
    written.replace(older)
    written.write_text(new)
    assert read + [step.step for step in steps] == list(range(8))


@pytest.mark.parametrize("content", [b"", b"not a trace\n", gzip.compress(b"{}", mtime=0), b"\xff\xfe\0"])
def test_a_file_without_a_step_is_the_users_mistake(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"no step of a trace \(.*notes\.txt:"):
        trace([path])


def test_many_broken_lines_are_reported_in_a_few(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written.write_text(written.read_text() + "{\n" * 1000)
    trace([written])
    shown = capsys.readouterr().err
    assert shown.count("\n") == 6
    assert "broken lines skipped: 1000" in shown


def test_a_file_of_nothing_but_broken_lines_is_left_early(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "MAX_BROKEN_LINES", 10)
    written.write_text("\n" * 20 + written.read_text())
    with pytest.raises(UserError, match="more than 10 lines are no step of a trace"):
        trace([written])


def test_reasons_are_neither_markup_nor_terminal_commands(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written.write_text(written.read_text().replace("K 3 is", r"[red]K[/bold] \u001b[31m\u0007 is"))
    trace([written])
    shown = capsys.readouterr().out
    assert r"[red]K[/bold] \x1b[#m\x07 is worth # tokens/s" in shown
    assert "\x1b" not in shown


def test_json_has_no_numbers_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    with DecisionTrace(path) as writer:
        view = make_view(1)
        writer.on_step(view, StepPlan(np.array([0])), make_outcome(view, 0, 0, step_seconds=0.0), 0.0)
    trace([path], as_json=True)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(capsys.readouterr().out, parse_constant=refuse)["steps"] == 1


def test_what_each_source_drafted(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace([written], as_json=True)
    assert "sources" not in json.loads(capsys.readouterr().out)
    path = tmp_path / "mixed.jsonl"
    with DecisionTrace(path) as writer:
        for step, accepted in enumerate(([1, 6, 0], [2, 0, 0])):
            sources = np.array([0, 1, 1])
            view = make_view(3, step=step, lookup=LookupView(np.array([0, 8, 0]), np.array([0.0, 5.0, 0.0])))
            plan = StepPlan(np.array([3, 8, 0]), sources=sources)
            writer.on_step(view, plan, make_outcome(view, [3, 8, 0], accepted, sources=sources), 1e-4)
    trace([path], as_json=True)
    assert json.loads(capsys.readouterr().out)["sources"] == {
        "drafter": {
            "drafts": 2, "drafted_tokens": 6, "accepted_tokens": 3, "acceptance_rate": 0.5, "accepted_length": 2.5,
        },
        "lookup": {
            "drafts": 2, "drafted_tokens": 16, "accepted_tokens": 6, "acceptance_rate": 6 / 16, "accepted_length": 4.0,
        },
    }  # fmt: skip
    trace([path])
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["drafter", "2", "6", "3", "50%", "2.50"] in rows
    assert ["look-up", "2", "16", "6", "38%", "4.00"] in rows
