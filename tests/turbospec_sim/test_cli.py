from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.turbospec.command import assert_one_line, close_stdout, run_command
from tests.turbospec_sim.interruption import interrupt_after, rows_of
from tests.turbospec_sim.scenarios import document
from tests.turbospec_sim.test_processes import alive, children
from turbospec import UserError
from turbospec_sim.run import Run, simulate

QUICK = ["--set", "workload.requests=12"]
NAMES = (
    "scenario", "request_rate", "policy", "seed", "p99_ttft_ms", "p99_tpot_ms", "median_ttft_ms", "median_tpot_ms",
    "p50_itl_ms", "p99_itl_ms", "output_throughput", "max_concurrent_requests", "completed", "failed", "slo_met",
    "regret_vs_oracle", "regret_vs_best_static", "engine_steps", "wall_seconds",
)  # fmt: skip


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    return run_command(["simulate", *arguments], monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(document(slo={"p99_ttft_ms": 500, "p99_tpot_ms": 100}), indent=1))
    return path


def test_rows_have_every_field_and_policies_are_compared(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    policies = [word for name in ("off", "oracle", "best_static") for word in ("--policy", name)]
    arguments = [str(file), *policies, "--rates", "5,10", "--seeds", "2", *QUICK, "--json", str(results)]
    assert run(arguments, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("mine", "oracle", "best_static (K=", "met in"))
    document = json.loads(results.read_text())
    assert set(document) == {"meta", "rows"}
    assert len(document["rows"]) == 3 * 2 * 2
    for row in document["rows"]:
        assert set(NAMES) <= set(row)
        assert isinstance(row["slo_met"], bool)
        assert row["completed"] == 12
        assert len(row["timeline"]["seconds"]) == len(row["timeline"]["acceptance"]) > 10
    assert document["meta"]["scenarios"]["mine"]["workload"]["requests"] == 12
    assert not list(tmp_path.glob("*.part"))


def test_without_options_the_scenarios_own_run_is_simulated(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(file), "--json", str(tmp_path / "r.json")], monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "goodput" in shown
    assert "regret" not in shown  # a column without any figure
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (row["policy"], row["request_rate"], row["regret_vs_oracle"]) == ("static-3", 20.0, None)


def test_results_that_are_there_are_kept(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.json").write_text("results of hours")
    assert run([str(file), "--json", str(tmp_path / "r.json")], monkeypatch) == 0
    assert (tmp_path / "r.json.bak").read_text() == "results of hours"
    assert json.loads((tmp_path / "r.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such scenario file"),
        (["drfit"], "no scenario is called `drfit`; did you mean `drift`?"),
        (["drift", "--policy", "adaptiv"], "no policy is called `adaptiv`; did you mean `adaptive`?"),
        (["drift", "--set", "policy=adaptiv"], "scenario `drift`: no policy is called `adaptiv`; did you mean"),
        (["drift", "--rates", "0"], "--rates 0: not a rate; give requests/s, above 0"),
        (["drift", "--rates", "1,-2"], "--rates -2: "),
        (["drift", "--rates", "fast"], "--rates fast: "),
        (["ttft-k15", "--rates", "1"], "none of these scenarios has rates"),
        (["drift", "--set", "server.nonsense=1"], "--set server.nonsense=1: server.nonsense: unknown field"),
        (["drift", "--seeds", "0"], "--seeds"),
        (["drift", "drift"], "two of the scenarios have the same file name"),
        (["drift", "--backend", "slurm"], "'slurm' is not one of 'local', 'ray'"),
        (["drift", "--backend", "ray", "--jobs", "2"], "--jobs: the ray backend uses every CPU of its cluster"),
        (["drift", "--set", "seed=9007199254740993"], "seed: input should be less than or equal to"),
        (["drift", "--set", "server.max_num_seqs=1000000000"], "server.max_num_seqs: input should be less than"),
        (
            ["drift", "--set", "latency.host_seconds=Infinity"],
            "=Infinity: Infinity is not JSON; numbers must be finite",
        ),
        (["drift", "--set", "latency.noise=" + "9" * 400], "--set latency.noise=999"),
        (["drift", "--set", "description=" + "[" * 5000 + "]" * 5000], "nested more than 100 levels deep"),
        (["drift", "--set", "a" + ".a" * 5000 + "=1"], "a field has at most 20 parts"),
        (["drift", "--set", "seed=1", "--set", "seed=2"], "--set seed=2: this field is set twice; keep one"),
        (["drift", "--set", "workload.requests=100000000"], "workload.requests: input should be less than or equal"),
        (["drift", "--seeds", "1" * 20], "--seeds"),
        (["drift", "--jobs", "1000000"], "--jobs"),
        (["drift", "--rates", ",".join(map(str, range(1, 2000)))], "--rates: more than 1000 rates; give fewer"),
        (["drift", "--rates", "1e300"], "--rates 1e300: not a rate"),
        (["drift", "--seeds", "10000", "--policy", "best_static"], "runs of 840,000,000 requests in all: roughly"),
        (["drift", "--json", "x", "--resume", "y"], "--json and --resume: "),
        (["drift", "--resume", "none.json"], "none.json: no such results file"),
        (["drift", "--set", "server.kv_cache_tokens=16"], "no request can be served: 14,000 of 14,000 requests"),
        (
            ["drift", "--set", 'workload.arrivals={"process":"closed","concurrency":4}'],
            '"concurrency":4}: `rates` has no meaning',
        ),
        (["drift", "--json", "r", "--report", "r"], "r: given for two outputs"),
        (["drift", "--report", "."], ".: this is a folder; name a file in it"),
        (["drift", "--json", "/dev/null/r.json"], "/dev/null/r.json: cannot be written (Not a directory)"),
        ([], "SCENARIO"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, words)


@pytest.mark.parametrize("text", ["version: [", "", "- 1", "version: 1\nversion: 1\n"])
def test_broken_yaml_is_one_line_with_its_place(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    assert run([str(path)], monkeypatch) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}:")
    assert "policy" not in error


ALL = ["--policy", "off", "--policy", "best_static", "--rates", "5,10", "--seeds", "2", *QUICK]


@pytest.mark.parametrize("finished", [1, 11])
def test_an_interrupted_run_is_completed_to_the_same_rows(
    finished: int, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    assert run([str(file), *ALL, "--json", str(whole)], monkeypatch) == 0
    with monkeypatch.context() as patched:
        interrupt_after(finished, patched)
        assert run([str(file), *ALL, "--json", str(part)], patched) == 130
    number = "1 of 28 runs is" if finished == 1 else "11 of 28 runs are"
    assert capsys.readouterr().err.endswith(f"{number} finished; --resume {part} completes the run\ninterrupted\n")
    assert len(rows_of(part)) == finished
    assert run([str(file), *ALL, "--resume", str(part)], monkeypatch) == 0
    assert rows_of(part) == rows_of(whole)
    assert "unfinished" not in json.loads(part.read_text())["meta"]


def test_more_seeds_and_policies_are_added_to_a_finished_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    few = [str(file), "--policy", "off", *QUICK]
    more = [str(file), "--policy", "static-1", "--policy", "off", "--seeds", "2", *QUICK]
    assert run([*more, "--json", str(whole)], monkeypatch) == 0
    assert run([*few, "--json", str(part)], monkeypatch) == 0
    assert run([*more, "--resume", str(part)], monkeypatch) == 0
    assert rows_of(part) == rows_of(whole)


def test_what_a_file_does_not_fit_is_one_line(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "part.json"
    assert run([str(file), "--policy", "off", "--seeds", "2", *QUICK, "--json", str(part)], monkeypatch) == 0
    capsys.readouterr()
    resumed = [str(file), "--resume", str(part)]
    for arguments, words in (
        (["--policy", "off", *QUICK], "has a run of `mine` under `off` at 20.0 requests/s with seed 1"),
        (["--policy", "static-1", "--seeds", "2", *QUICK], "has a run of `mine` under `off`"),
        (["--policy", "off", "--seeds", "2"], "simulated with another `scenarios.mine.workload.requests`"),
        (["--policy", "off", *QUICK, "--report", str(part)], "given for two outputs"),
    ):
        assert run([*resumed, *arguments], monkeypatch) == 2
        assert_one_line(capsys.readouterr().err, words)


def test_an_error_keeps_what_is_finished(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(run: Run) -> dict[str, Any]:
        if run.seed == 1:
            raise UserError("no more")
        return simulate(run)

    monkeypatch.setattr("turbospec_sim.sweep.simulate", broken)
    part = tmp_path / "part.json"
    assert run([str(file), "--policy", "off", "--seeds", "3", *QUICK, "--json", str(part)], monkeypatch) == 2
    assert [row["seed"] for row in rows_of(part)] == [0]


def test_without_a_file_an_interruption_says_that_nothing_is_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_after(1, monkeypatch)
    assert run([str(file), *ALL], monkeypatch) == 130
    said = "1 of 28 runs is finished and nothing is kept; with --json FILE, --resume FILE would complete them\n"
    assert capsys.readouterr().err.endswith(f"{said}interrupted\n")


def test_inputs_are_not_overwritten(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, recording = tmp_path / "p.yaml", tmp_path / "a.jsonl"
    policy.write_text("version: 1\npolicy: static\ndraft_length: 1\n")
    recording.write_text("[1, 0]\n")
    recorded = f'workload.classes.0.acceptance={{"process": "trace", "file": "{recording}"}}'
    for output in (file, policy, recording):
        before = output.read_bytes()
        arguments = [str(file), "--policy", str(policy), "--set", recorded, *QUICK]
        assert run([*arguments, "--json", str(output)], monkeypatch) == 2
        assert_one_line(capsys.readouterr().err, f"{output}: is read by this command")
        assert output.read_bytes() == before


def test_long_work_says_its_cost(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_after(0, monkeypatch)
    assert run([str(file), "--seeds", "5000"], monkeypatch) == 130
    assert "5,000 runs of 300,000 requests in all: roughly " in capsys.readouterr().err


def test_requests_that_fit_no_cache_are_told(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "r.json"
    small = ["--set", "server.kv_cache_tokens=205", "--json", str(results)]
    assert run([str(file), *small], monkeypatch) == 0
    said = capsys.readouterr().err
    (row,) = rows_of(results)
    assert 0 < row["failed"] < 60
    assert f"mine: {row['failed']} of 60 requests do not fit the KV cache of 192 tokens" in said
    assert "of class `chat`, needs " in said
    assert row["refused"] in said


@pytest.mark.parametrize(("rates", "said"), [("1.2", False), ("0.5,1.31", True)])
def test_a_curve_that_is_cut_is_told(
    rates: str, said: bool, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day = 'workload.arrivals={"process": "day", "curve": [0.1, 2.0], "period_seconds": 10}'
    assert run([str(file), *QUICK, "--set", day, "--rates", rates], monkeypatch) == 0
    told = capsys.readouterr().err
    assert ("mine: at 1.31 requests/s its 12 requests end before one period of 10 s" in told) == said
    assert ("may miss the peak" in told) == said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_keep_finished_runs_and_leave_no_process(number: signal.Signals, file: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.json"
    script = "from turbospec.cli import main; main()"
    words = ["simulate", str(file), "--seeds", "9000", "--jobs", "2", "--json", str(part)]
    with subprocess.Popen([sys.executable, "-c", script, *words], stderr=subprocess.PIPE, text=True) as process:
        while not part.exists() and process.poll() is None:
            time.sleep(0.05)
        started = children(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert f"--resume {part} completes the run\ninterrupted\n" in said
    assert "resource_tracker" not in said
    assert len(started) == 2
    assert not alive(started)
    assert len(rows_of(part)) >= 1


def test_a_closed_stdout_loses_no_results(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    results, report = tmp_path / "r.json", tmp_path / "r.html"
    close_stdout(monkeypatch)
    assert run([str(file), "--seeds", "3", *QUICK, "--json", str(results), "--report", str(report)], monkeypatch) == 1
    assert "unfinished" not in json.loads(results.read_text())["meta"]
    assert len(rows_of(results)) == 3
    assert report.exists()


def test_the_report_shows_every_policy_and_needs_no_network(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "new" / "report.html"
    policies = [word for name in ("off", "adaptive", "oracle", "best_static") for word in ("--policy", name)]
    assert run([str(file), *policies, "--rates", "5,10", *QUICK, "--report", str(report)], monkeypatch) == 0
    assert str(report) in capsys.readouterr().out
    html = report.read_text(encoding="utf-8")
    for words in ("mine", "off", "adaptive", "oracle", "best_static", "P99 TTFT &lt; 500 ms", "numba: ", "seed 0"):
        assert words in html
    assert html.count("<svg") == 1 + 2 + 1  # against load; over time at both rates; step time
    assert "<script" not in html
    assert not re.search(r"(src|href|url)\s*[=(]\s*['\"]?https?:", html)


def no_simulation(*_: object) -> None:
    raise AssertionError("simulated before the mistake was told")


@pytest.mark.parametrize(
    ("missing", "loaded", "options", "words"),
    [
        (
            "matplotlib",
            "turbospec_bench.reports.plot_style",
            ["--report", "report.html"],
            "in a clone of TurboSpec get reports and pictures with: pip install '.[bench]'",
        ),
        (
            "jinja2",
            "turbospec_bench.reports.page",
            ["--report", "report.html"],
            "in a clone of TurboSpec get reports and pictures with: pip install '.[bench]'",
        ),
        ("ray", "ray", ["--backend", "ray"], "in a clone of TurboSpec get Ray with: pip install '.[ray]'"),
    ],
)
def test_a_missing_extra_is_one_line(
    missing: str,
    loaded: str,
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("turbospec_sim.sweep.simulate", no_simulation)
    for name in (
        loaded,
        "turbospec_bench.reports.simulation",
        "turbospec_bench.reports.simulation_plots",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert run(["drift", *QUICK, *options], monkeypatch) == 2
    assert capsys.readouterr().err == f"error: {missing} is not installed; {words}\n"


@pytest.mark.parametrize("error", [ConnectionError("ray: timed out\nafter a while"), ValueError("Invalid address")])
def test_a_ray_cluster_that_does_not_answer_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**_: object) -> None:
        raise error

    ray = ModuleType("ray")
    ray.__dict__.update(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:6379")
    assert run(["drift", *QUICK, "--backend", "ray"], monkeypatch) == 2
    assert capsys.readouterr().err == (
        "error: --backend ray: no cluster answers at nowhere:6379; start one, or correct RAY_ADDRESS\n"
    )
