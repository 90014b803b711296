from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec.command import assert_one_line, close_stdout, run_command
from tests.turbospec_sim.replay.traces import written
from tests.turbospec_sim.scenarios import closed
from turbospec.cli.compilation import MESSAGE
from turbospec.policy import PolicyConfig
from turbospec_sim.replay.replay import Replay


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    return run_command(["replay", *arguments], monkeypatch)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("replay") / "trace.jsonl"
    written(path, closed(4, server__emit="before_draft"), "static-3")
    return path.read_text().splitlines(keepends=True)


@pytest.fixture
def trace(lines: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(lines))
    return path


def test_bounds_are_shown_and_written(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    policies = ["--policy", "static-3", "--policy", "static-5"]
    assert run([str(trace), *policies, "--concurrency", "4", "--json", str(results)], monkeypatch) == 0
    shown = capsys.readouterr()
    assert shown.err.replace(f"{MESSAGE}\n", "") == ""
    for words in ("recorded", "as recorded", "static-5", "rejected", "accepted", "replay's own error", "judged"):
        assert words in shown.out
    document = json.loads(results.read_text())
    rows = {(row["policy"], row["bound"]): row for row in document["rows"]}
    assert set(rows) == {
        ("recorded", None), ("as recorded", "pessimistic"), ("static-3", "pessimistic"), ("static-3", "optimistic"),
        ("static-5", "pessimistic"), ("static-5", "optimistic"),
    }  # fmt: skip
    recorded = rows["recorded", None]["output_throughput"]
    assert rows["static-3", "pessimistic"]["output_throughput"] == pytest.approx(recorded, rel=0.03)
    assert rows["static-5", "pessimistic"]["judged_share"] < 1.0
    meta = document["meta"]
    assert meta["requests"] == 60
    assert meta["broken_lines"] == 0
    assert 0.0 <= meta["step_time_median_error"] < 0.02
    assert meta["drafter"]["max_draft"] == 5


def test_an_interruption_keeps_the_policies_that_are_finished(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Replay.rows

    def interrupted(replay: Replay, name: str, config: PolicyConfig) -> Any:
        if name == "static-5":
            raise KeyboardInterrupt
        return rows(replay, name, config)

    monkeypatch.setattr(Replay, "rows", interrupted)
    policies = ["--policy", "static-3", "--policy", "static-5"]
    assert run([str(trace), *policies, "--json", str(tmp_path / "r.json")], monkeypatch) == 130
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["meta"]["unfinished"]
    assert [row["policy"] for row in document["rows"]] == ["recorded", "as recorded", "static-3", "static-3"]


def test_a_closed_stdout_loses_no_results(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close_stdout(monkeypatch)
    assert run([str(trace), "--policy", "off", "--json", str(tmp_path / "r.json")], monkeypatch) == 1
    assert json.loads((tmp_path / "r.json").read_text())["rows"]


def test_a_trace_without_drafts_tells_nothing_of_their_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "off.jsonl", closed(4), "off")
    assert run([str(tmp_path / "off.jsonl"), "--policy", "static-1"], monkeypatch) == 0
    assert "the time of drafting is a prior" in capsys.readouterr().out


def test_a_file_that_ends_in_the_middle_of_a_line_is_used_and_said(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text(trace.read_text()[:-40])
    assert run([str(trace), "--policy", "off"], monkeypatch) == 0
    assert "broken lines skipped: 1" in capsys.readouterr().err


def test_lines_with_other_versions_or_uneven_arrays_are_skipped_and_counted(
    lines: list[str], trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = json.loads(lines[4]) | {"format": 3}
    uneven = json.loads(lines[5])
    uneven["context_tokens"] = [1, *uneven["context_tokens"]]
    changed = [*lines[:4], json.dumps(other) + "\n", json.dumps(uneven) + "\n", *lines[6:]]
    trace.write_text("".join(changed))
    assert run([str(trace), "--policy", "off"], monkeypatch) == 0
    error = capsys.readouterr().err.replace("\n", "")
    assert "trace.jsonl:5: format" in error
    assert "trace.jsonl:6: " in error
    assert "broken lines skipped: 2" in error


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no step of a trace"),
        ("not a trace\n", "trace.jsonl:1: "),
        ('{"format": 3}\n', "trace.jsonl:1: format: "),
    ],
)
def test_what_is_no_trace_is_one_line(
    content: str, words: str, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text(content)
    assert run([str(trace), "--policy", "off"], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jsonl", "--policy", "off"], "nowhere.jsonl: no such trace"),
        (["TRACE", "--policy", "adaptiv"], "no policy is called `adaptiv`; did you mean `adaptive`?"),
        (["TRACE"], "--policy"),
        (["TRACE", "TRACE", "--policy", "off"], "named twice; its steps would count twice"),
        (["TRACE", "--policy", "off", "--profile", "none.json"], "none.json: no such profile"),
        (["TRACE", "--policy", "off", "--json", "."], ".: this is a folder; name a file in it"),
        (["TRACE", "--policy", "off", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    words: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([str(trace) if word == "TRACE" else word for word in arguments], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, words)
