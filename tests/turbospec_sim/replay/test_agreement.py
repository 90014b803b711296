from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec_sim.replay.traces import written
from tests.turbospec_sim.scenarios import closed
from turbospec import UserError
from turbospec.profile import Profile
from turbospec.telemetry.cell import Cell
from turbospec.telemetry.trace_folder import TraceFolder
from turbospec_sim.replay.agreement import BY_PROFILE, BY_TRACE, agreements, mean_and_worst, read_rows
from turbospec_sim.replay.replay import Replay

SCRIPT = Path(__file__).parents[3] / "simulations" / "engine_agreement.py"
CELL = Cell("code", "good", 4)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A benchmark of one run, by an engine that is a simulated one, with twice its time to first token reported."""
    folder = TraceFolder(tmp_path / "traces")
    path = folder.trace(CELL, "static-3", "before_draft", 1)
    path.parent.mkdir(parents=True)
    steps = written(path, closed(4, server__emit="before_draft"), "static-3")
    replay = Replay(steps, concurrency=4)
    Profile(replay.recording.samples).save(folder.profile("good"))
    again = replay.as_recorded()
    measured = {**replay.recorded, "mean_ttft_ms": 2.0 * again["mean_ttft_ms"]}
    figures = {name: [measured[name]] for name in ("output_throughput", "mean_tpot_ms", "mean_ttft_ms")}
    row: dict[str, Any] = {**CELL.fields, "policy": "static-3", "emit": "before_draft", "rounds": 1}
    other = {**row, "policy": "transformers-off", "emit": None}
    document = tmp_path / "results.json"
    document.write_text(json.dumps({"meta": {}, "rows": [row | {"round_figures": figures}, other]}))
    return document


def test_a_run_is_simulated_with_both_step_times(results: Path, tmp_path: Path) -> None:
    found = list(agreements(read_rows(results), TraceFolder(tmp_path / "traces")))
    assert [agreement.step_times for agreement in found] == [BY_PROFILE, BY_TRACE]
    for agreement in found:
        assert agreement.simulated_steps == agreement.steps
        assert agreement.error("output_throughput") == pytest.approx(0.0, abs=0.02)
        assert agreement.error("mean_tpot_ms") == pytest.approx(0.0, abs=0.02)
        assert agreement.error("mean_ttft_ms") == pytest.approx(-0.5, abs=0.02)
        assert agreement.document()["mean_ttft_ms_error"] == agreement.error("mean_ttft_ms")
    mean, worst = mean_and_worst(found, "mean_ttft_ms")
    assert mean == pytest.approx(0.5, abs=0.02)
    assert worst == pytest.approx(-0.5, abs=0.02)


def test_the_script_shows_and_writes_them(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "agreement.json"
    monkeypatch.setattr(sys, "argv", ["x", str(results), str(tmp_path / "traces"), "--json", str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr().out
    assert "code/good/c4 static-3 1" in shown
    assert "worst" in shown
    assert [row["step_times"] for row in json.loads(out.read_text())["rows"]] == [BY_PROFILE, BY_TRACE]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the results"),
        ("[]", "not a file that"),
        ('{"rows": [{"emit": null}]}', "no row of the embedded engine"),
    ],
)
def test_results_that_are_none_are_refused(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=words):
        read_rows(path)


def test_a_missing_trace_is_one_line(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", str(results), str(tmp_path / "elsewhere")])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
