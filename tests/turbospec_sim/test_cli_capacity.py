from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.turbospec.command import close_stdout, run_command
from tests.turbospec_sim.interruption import rows_of
from tests.turbospec_sim.scenarios import document
from turbospec_sim.capacity import capacity
from turbospec_sim.run import Run

SLO = {"p99_ttft_ms": 200, "p99_tpot_ms": 100}


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    return run_command(["capacity", *arguments, "--tolerance", "0.05"], monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A server where every draft is wrong."""
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(document(slo=SLO, chat__acceptance={"process": "iid", "rate": 0.0})))
    return path


def test_policies_are_compared_seed_by_seed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    policies = ["--policy", "off", "--policy", "static-5", "--policy", "best_static"]
    assert run([str(file), *policies, "--seeds", "2", "--json", str(results)], monkeypatch) == 0
    assert "best_static (K=0)" in capsys.readouterr().out
    off, dear, best = json.loads(results.read_text())["rows"]
    assert off["ratio"] == 1.0
    assert dear["ratio_high"] < 0.9
    assert (best["capacity"], best["draft_length"]) == (off["capacity"], 0)
    first, second = off["capacity_by_seed"]
    assert off["capacity"] == pytest.approx((first + second) / 2, rel=1e-5)  # six digits


def test_a_closed_stdout_loses_no_results(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close_stdout(monkeypatch)
    assert run([str(file), "--json", str(tmp_path / "r.json")], monkeypatch) == 1
    assert "unfinished" not in json.loads((tmp_path / "r.json").read_text())["meta"]


def test_the_scenarios_own_policy_is_taken_where_none_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(file)], monkeypatch) == 0
    assert "static-3" in capsys.readouterr().out


def test_interrupted_searches_are_completed_to_the_same_rows(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    arguments = [str(file), "--policy", "off", "--policy", "static-5", "--seeds", "2"]
    assert run([*arguments, "--json", str(whole)], monkeypatch) == 0
    left = [3]

    def interrupted(run: Run, *, tolerance: float) -> float:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return capacity(run, tolerance=tolerance)

    with monkeypatch.context() as patched:
        patched.setattr("turbospec_sim.capacity.capacity", interrupted)
        assert run([*arguments, "--json", str(part)], patched) == 130
        assert "3 of 4 runs are finished" in capsys.readouterr().err
        left[0] = 1
        assert run([*arguments, "--resume", str(part)], patched) == 0
    assert rows_of(part) == rows_of(whole)


def test_a_search_that_comes_to_its_end_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    for limit, words in ((1e12, "the search ends at 100000 requests/s"), (1e-3, "is missed even at 0.001 requests/s")):
        path.write_text(json.dumps(document(slo={"p99_ttft_ms": limit}, workload__requests=5)))
        assert run([str(path)], monkeypatch) == 0
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "no `slo`"),
        ({"slo": {}}, "has no `slo` with a limit"),
        ({"workload__arrivals": {"process": "closed", "concurrency": 2}, "rates": None}, "has no request rate"),
    ],
)
def test_a_scenario_without_objectives_or_rates_has_no_capacity(
    changes: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(document(**(({"slo": SLO} if changes else {}) | changes))))
    assert run([str(path)], monkeypatch) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
