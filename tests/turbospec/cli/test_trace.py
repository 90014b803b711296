from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from turbospec import UserError
from turbospec.cli.trace import trace
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView
from turbospec.observability.trace import DecisionTrace


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A trace of ten steps of one request: K 3, of which 2 are accepted."""
    path = tmp_path / "trace.jsonl"
    one = np.ones(1, np.int64)
    with DecisionTrace(path) as writer:
        for step in range(10):
            view = StepView(step, step * 0.01, one, one * Phase.DECODE, one, one, one, one, one, one * 7, max_draft=7)
            plan = StepPlan(one * 3, 2.8, 0.011, f"K 3 is worth {step} tokens/s")
            no_end = np.zeros(1, bool)
            writer.on_step(view, plan, StepOutcome(step, one, one * 3, one * 2, one * 3, no_end, one * 3), 1e-4)
    return path


def test_tables(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace([written])
    shown = capsys.readouterr()
    assert shown.err == ""
    for words in ("steps", "accepted length", "3.00", "K # is worth # tokens/s", "100%"):
        assert words in shown.out


def test_json_alone_is_on_stdout(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written.write_text(written.read_text() + "{\n[]\n")
    trace([written], as_json=True)
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["steps"], document["broken_lines"]) == (10, 2)
    assert document["acceptance"] == [1, 1, 0]
    assert "trace.jsonl:11" in shown.err.replace("\n", "")
    assert "broken lines skipped: 2" in shown.err


def test_several_files_count_together(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace([written, written], as_json=True)
    assert json.loads(capsys.readouterr().out)["steps"] == 20


@pytest.mark.parametrize("content", ["", "not a trace\n"])
def test_a_file_without_a_step_is_the_users_mistake(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=r"no step of a trace \(.*notes\.txt:"):
        trace([path])
