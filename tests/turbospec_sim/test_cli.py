from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.turbospec.command import assert_one_line, run_command
from tests.turbospec_sim.scenarios import document
from turbospec.cli.compilation import MESSAGE

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
        (["drift", "--set", "seed=100000000000000000000"], "seed: input should be less than or equal to"),
        (["drift", "--set", "server.max_num_seqs=1000000000"], "server.max_num_seqs: input should be less than"),
        (["drift", "--set", "latency.host_seconds=Infinity"], "latency.host_seconds=Infinity: Infinity is not JSON; numbers must be finite"),
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


def test_an_interruption_ends_with_130(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("turbospec_sim.sweep.simulate", interrupted)
    assert run([str(file), "--json", str(tmp_path / "r.json")], monkeypatch) == 130
    said = "no run is finished; there are no results to resume from\ninterrupted\n"
    assert capsys.readouterr().err.replace(f"{MESSAGE}\n", "") == said
    assert not (tmp_path / "r.json").exists()


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
            "get reports and pictures with: pip install 'turbospec[bench]'",
        ),
        (
            "jinja2",
            "turbospec_bench.reports.page",
            ["--report", "report.html"],
            "get reports and pictures with: pip install 'turbospec[bench]'",
        ),
        ("ray", "ray", ["--backend", "ray"], "get Ray with: pip install 'turbospec[ray]'"),
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
        "turbospec_sim.sweep",
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
