from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.turbospec.command import assert_one_line, run_command
from tests.turbospec.doctor.test_counts import BENCH
from turbospec import UserError
from turbospec.cli.doctor import doctor


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(BENCH))
    return path


def test_findings_are_told_in_words(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(bench=result, baseline=result)
    shown = capsys.readouterr().out
    for words in (
        "60.0%",
        "the drafter matches its target",
        "Assumed: drafting a token takes 0.08",
        "it pays if it takes less than",
        "1.00 × the output tokens/s",
    ):
        assert words in shown


def test_json_alone_is_on_stdout(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(bench=result, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["acceptance"] == [0.6, 0.4, 0.25]
    assert document["best_length"] >= 1


def test_one_source_is_needed(result: Path) -> None:
    for mistake in (
        {},
        {"url": "http://127.0.0.1:1", "bench": result},
        {"url": "http://127.0.0.1:1", "baseline": result},
    ):
        with pytest.raises(UserError, match="--"):
            doctor(**mistake)


@pytest.mark.parametrize(
    "options",
    [
        ["--url", "http://127.0.0.1:1", "--seconds", "nan"],
        ["--url", "http://127.0.0.1:1", "--seconds", "inf"],
        ["--url", "http://127.0.0.1:1", "--seconds", "-1"],
        ["--draft-cost", "nan"],
        ["--draft-cost", "inf"],
        ["--verify-cost", "nan"],
        ["--verify-cost", "1e308"],
        ["--url", "http://me:hidden@127.0.0.1:1"],
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], result: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = [] if "--url" in options else ["--bench", str(result)]
    assert run_command(["doctor", *source, *options], monkeypatch) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert_one_line(shown.err)
    assert "hidden" not in shown.err


def test_text_of_a_result_is_no_terminal_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "[red]\x1b[31m.json"
    path.write_text(json.dumps(BENCH))
    doctor(bench=path, baseline=path)
    shown = capsys.readouterr().out
    assert r"[red]\x1b[31m.json" in shown
    assert "\x1b" not in shown
