from __future__ import annotations

import json
from pathlib import Path

import pytest

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
