from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec.command import assert_one_line, close_stdout
from tests.turbospec.command import run_command as run
from tests.turbospec_sim.interruption import interrupt_after, rows_of
from tests.turbospec_sim.scenarios import document
from turbospec_sim import calibration
from turbospec_sim.scenario_file import read_scenario

FLOOR = "latency.verify_floor_seconds"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("# A comment\n" + json.dumps(document(workload__requests=15), indent=1))
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "measured.csv"
    path.write_text("run,rate_rps,ttft_p99_ms,tpot_p99_ms,output_tok_s\na,5,90,45,140\na,10,95,50,250\nelse,1,1,1,1\n")
    return path


def test_a_fit_is_shown_saved_and_written(
    file: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, folder = tmp_path / "fit.json", tmp_path / "fitted"
    words = ["calibrate", f"{file}=a", "--measured", str(measured), "--fit", FLOOR, "--seeds", "2",
             "--json", str(results), "--write", str(folder)]  # fmt: skip
    assert run(words, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("p99_tpot_ms: mean absolute error", FLOOR, "95 % interval"))
    found = json.loads(results.read_text())
    assert len(found["rows"]) == 2 * 3
    assert any(row["spread_over_seeds"] > 0.0 for row in found["rows"])
    (one,) = found["meta"]["coefficients"]
    assert one["low"] < one["value"] < one["high"]
    written = folder / "mine.yaml"
    assert written.read_text().startswith("# A comment\n")
    latency = read_scenario(written).latency
    assert latency.model_dump()["verify_floor_seconds"] == pytest.approx(one["value"], rel=1e-3)


def test_a_scenario_that_is_there_is_kept(
    file: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = tmp_path / "fitted/mine.yaml"
    earlier.parent.mkdir()
    earlier.write_text("# edited by hand\n")
    words = ["calibrate", f"{file}=a", "--measured", str(measured), "--seeds", "1", "--write", str(earlier.parent)]
    assert run(words, monkeypatch) == 0
    assert (earlier.parent / "mine.yaml.bak").read_text() == "# edited by hand\n"
    assert earlier.read_text().startswith("# A comment\n")


def test_a_closed_stdout_loses_no_results(
    file: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_stdout(monkeypatch)
    words = ["calibrate", f"{file}=a", "--measured", str(measured), "--fit", FLOOR, "--seeds", "1",
             "--evaluations", "1", "--json", str(tmp_path / "fit.json"), "--write",
             str(tmp_path / "fitted")]  # fmt: skip
    assert run(words, monkeypatch) == 1
    assert "unfinished" not in json.loads((tmp_path / "fit.json").read_text())["meta"]
    assert (tmp_path / "fitted" / "mine.yaml").exists()


def test_a_scenario_that_is_edited_during_the_fit_is_written_as_it_was_read(
    file: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit_and_fit(*arguments: Any, **options: Any) -> calibration.Calibration:
        file.write_text("edited")
        return fit(*arguments, **options)

    fit = calibration.calibrate
    monkeypatch.setattr(calibration, "calibrate", edit_and_fit)
    words = ["calibrate", f"{file}=a", "--measured", str(measured), "--seeds", "1", "--write", str(tmp_path / "fitted")]
    assert run(words, monkeypatch) == 0
    assert (tmp_path / "fitted" / "mine.yaml").read_text().startswith("# A comment\n")


def test_without_a_field_figures_are_only_compared(
    file: Path, measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["calibrate", f"{file}=a", "--measured", str(measured), "--figure", "output_throughput", "--seeds", "1"]
    assert run(words, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "output_throughput: mean absolute error" in shown
    assert "–" in shown  # one seed has no spread
    assert "tpot" not in shown
    assert "fitted" not in shown


def test_an_interrupted_fit_is_completed_to_the_same_file(
    file: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    words = ["calibrate", f"{file}=a", "--measured", str(measured), "--fit", FLOOR, "--seeds", "2"]
    assert run([*words, "--json", str(whole)], monkeypatch) == 0
    with monkeypatch.context() as patched:
        interrupt_after(9, patched)
        assert run([*words, "--json", str(part)], patched) == 130
    assert capsys.readouterr().err.endswith(f"9 runs are finished; --resume {part} completes the run\ninterrupted\n")
    assert len(rows_of(part)) == 9
    assert run([*words, "--resume", str(part)], monkeypatch) == 0
    assert rows_of(part) == rows_of(whole)
    assert run([*words, "--resume", str(part)], monkeypatch) == 2
    assert f"{part}: is finished; there is nothing to resume" in capsys.readouterr().err


def test_a_scenario_that_was_read_is_not_overwritten(
    file: Path, measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_text()
    for options in (["--fit", FLOOR, "--write", str(file.parent)], ["--json", str(file)], ["--json", str(measured)]):
        assert run(["calibrate", f"{file}=a", "--measured", str(measured), *options], monkeypatch) == 2
        assert_one_line(capsys.readouterr().err, "is read by this command; name another file")
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--fit", "latency.host"], "--fit latency.host: no field `host`"),
        (["--fit", "other:latency.host_seconds"], "other is not one of the scenarios"),
        (["--fit", "server.max_num_seqs"], "only real numbers can be fitted"),
        (["--fit", FLOOR, "--fit", f"mine:{FLOOR}"], "fitted already"),
        (["--figure", "speed"], "--figure speed: not a simulated figure"),
        (["--figure", "p99_ttft_ms", "--figure", "p95_ttft_ms"], "--figure p95_ttft_ms: no run was measured by it"),
        (["--set", "policy=best_static"], "run `a`: a fit needs one policy, not best_static; name static-K"),
        (["--set", "seed=3", "--write", "x"], "--write edits the scenario files"),
        (["--json", "."], ".: this is a folder; name a file in it"),
        (["--write", "/dev/null/fitted"], "/dev/null/fitted/mine.yaml: cannot be written"),
        (["--evaluations", "1000000000"], "--evaluations"),
        (["--set", "server.kv_cache_tokens=16"], "no request can be served"),
        (["--measured", "none.csv"], "none.csv: no such file of measurements"),
    ],
)
def test_mistakes_are_one_line(
    extra: list[str],
    words: str,
    file: Path,
    measured: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["calibrate", f"{file}=a", "--measured", str(measured), *extra], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, words)


def test_a_scenario_that_names_files_relative_to_its_own_is_not_written_elsewhere(
    file: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.yaml").write_text("version: 1\npolicy: static\ndraft_length: 2\n")
    words = ["calibrate", f"{file}=a", "--measured", str(measured), "--seeds", "1", "--write", str(tmp_path / "fitted")]
    file.write_text(json.dumps(document(workload__requests=15, policy="own.yaml")))
    assert run(words, monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, "mine names own.yaml by a path relative to its own file")
    file.write_text(json.dumps(document(workload__requests=15, policy=str(tmp_path / "own.yaml"))))
    assert run(words, monkeypatch) == 0
    assert read_scenario(tmp_path / "fitted" / "mine.yaml").policy == str(tmp_path / "own.yaml")


def test_of_a_file_with_one_run_another_that_is_named_is_not_there(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.csv").write_text("run,rate_rps,ttft_p99_ms\nrun-8,5,90\n")
    assert run(["calibrate", f"{file}=run-7", "--measured", str(tmp_path / "one.csv")], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, "no measured run is called `run-7`")


def test_a_run_with_another_number_of_requests_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = tmp_path / "run.json"
    words = ["calibrate", str(file), "--measured", str(run_file), "--seeds", "1"]
    run_file.write_text('{"request_rate": 5, "num_prompts": 900, "mean_ttft_ms": 90}')
    assert run(words, monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, "run `run` had 900 requests, but mine has 15; set workload.requests")
    run_file.write_text('{"request_rate": 5, "num_prompts": 15, "mean_ttft_ms": 90}')
    assert run(words, monkeypatch) == 0


def test_a_run_with_another_number_of_clients_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text('{"request_rate": "inf", "max_concurrency": 32, "mean_ttft_ms": 90}')
    assert run(["calibrate", "ttft-k15", "--measured", str(tmp_path / "run.json")], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, "run `run` had 32 requests at a time, but ttft-k15 has 1; set workload")


def test_a_field_that_a_file_cannot_hold_is_named_before_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.csv").write_text("run,rate_rps,ttft_p99_ms\na,1,90\n")
    words = ["calibrate", "healthy-eagle3=a", "--measured", str(tmp_path / "run.csv"), "--write", str(tmp_path / "w")]
    assert run([*words, "--fit", "latency.gpu.bandwidth_gb_s"], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, "--write: healthy-eagle3: `gpu` is the name `h200`; write its fields out")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("mine.yaml", "no measured run is called `mine`; name that of mine with mine=RUN (measured: a, else)"),
        ("mine.yaml=b", "no measured run is called `b`"),
        ("ttft-k15=a", "run `a` has a request rate, but ttft-k15 has no rates"),
    ],
)
def test_a_run_that_does_not_match_is_named(
    source: str, words: str, file: Path, measured: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(file.parent)
    assert run(["calibrate", source, "--measured", str(measured)], monkeypatch) == 2
    assert words in capsys.readouterr().err
