from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.turbospec_sim.replay.traces import written
from tests.turbospec_sim.scenarios import closed
from turbospec import UserError
from turbospec.models.profile import Profile
from turbospec_bench.agreement import (
    BY_OTHERS,
    BY_PROFILE,
    BY_TRACE,
    FIGURES,
    agreements,
    median_errors,
    read_rows,
)
from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.results import RATIOS, Results
from turbospec_bench.trace_folder import TraceFolder
from turbospec_bench.variant import Variant
from turbospec_sim.replay.replay import Replay

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine_agreement.py"
CONFIGURATION = Configuration("code", "good", 4)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A benchmark of two runs, by an engine that is a simulated one, with twice its time to first token reported."""
    folder = TraceFolder(tmp_path / "traces")
    runs: dict[str, Run] = {"off": Run(dict.fromkeys(RATIOS, 1.0), {})}
    for policy in ("static-3", "static-2"):
        path = folder.trace(CONFIGURATION, policy, "before_draft", 1)
        path.parent.mkdir(parents=True)
        replay = Replay(written(path, closed(4, server__emit="before_draft"), policy), concurrency=4)
        Profile(replay.recording.samples).save(folder.profile("good"))
        measured = {**replay.recorded, "mean_ttft_ms": 2.0 * replay.as_recorded()["mean_ttft_ms"]}
        runs[policy] = Run(dict.fromkeys(RATIOS, 1.0) | {name: measured[name] for name in FIGURES}, {})
    document = Results(tmp_path / "results.json", {})
    variants = [Variant(policy, None if policy == "off" else "before_draft") for policy in runs]
    document.put(CONFIGURATION, variants, [[*runs.values()]])
    document.save()
    return document.path


def test_a_run_is_simulated_with_each_kind_of_step_times(results: Path, tmp_path: Path) -> None:
    found = list(agreements(read_rows(results), TraceFolder(tmp_path / "traces")))
    assert [agreement.step_times for agreement in found] == [BY_PROFILE, BY_OTHERS, BY_TRACE] * 2
    for agreement in found:
        assert agreement.simulated_steps == agreement.steps
        assert agreement.error("output_throughput") == pytest.approx(0.0, abs=0.04)
        assert agreement.error("mean_tpot_ms") == pytest.approx(0.0, abs=0.04)
        assert agreement.error("mean_ttft_ms") == pytest.approx(-0.5, abs=0.04)
        assert agreement.document()["mean_ttft_ms_error"] == agreement.error("mean_ttft_ms")


def test_other_policies_step_times_are_not_the_runs_own(results: Path, tmp_path: Path) -> None:
    slow = TraceFolder(tmp_path / "traces").trace(CONFIGURATION, "static-2", "before_draft", 1)
    lines = [json.loads(line) for line in slow.read_text().splitlines()]
    for line in lines:
        for name in ("now", "step_seconds", "draft_seconds", "verify_seconds"):
            line[name] *= 2.0
    slow.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = list(agreements(read_rows(results), TraceFolder(tmp_path / "traces")))
    errors = {run.step_times: run.error("output_throughput") for run in found if run.policy == "static-3"}
    assert errors[BY_OTHERS] == pytest.approx(-0.5, abs=0.05)
    assert errors[BY_TRACE] == pytest.approx(0.0, abs=0.02)


def test_errors_are_medians_over_the_rounds_of_a_policy(results: Path, tmp_path: Path) -> None:
    (run, *_) = agreements(read_rows(results), TraceFolder(tmp_path / "traces"))
    rounds = [
        replace(run, policy=policy, number=number, simulated={"mean_tpot_ms": run.measured["mean_tpot_ms"] * ratio})
        for policy, number, ratio in (("a", 1, 1.2), ("b", 1, 0.9), ("a", 2, 1.1), ("a", 3, 3.0))
    ]
    assert [*median_errors(rounds, "mean_tpot_ms").values()] == pytest.approx([0.2, -0.1])


def test_runs_without_drafts_do_not_tell_how_long_drafting_takes(results: Path, tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path / "traces")
    written(folder.trace(CONFIGURATION, "static-2", "before_draft", 1), closed(4, server__emit="before_draft"), "off")
    found = list(agreements(read_rows(results), folder))
    assert [run.step_times for run in found] == [BY_PROFILE, BY_TRACE, BY_PROFILE, BY_OTHERS, BY_TRACE]


def test_the_script_shows_and_writes_them(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "agreement.json"
    monkeypatch.setattr(sys, "argv", ["x", str(results), str(tmp_path / "traces"), "--json", str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr().out
    assert "code/good/c4 static-3 " in shown
    assert "worst" in shown
    assert [row["step_times"] for row in json.loads(out.read_text())["rows"]] == [
        BY_PROFILE, BY_OTHERS, BY_TRACE
    ] * 2  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such results file"),
        ("[]", "not a file that"),
        ('{"rows": [{"emit": null}]}', "not a file that"),
        ('{"meta": {}, "rows": []}', "no row of the embedded engine"),
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
