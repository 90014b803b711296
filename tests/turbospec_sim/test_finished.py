from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec_sim.scenarios import scenario
from turbospec import UserError
from turbospec.files.results_file import plain
from turbospec.policy import find_policy, read_policy
from turbospec_sim.finished import FIGURES_ONLY, FinishedRuns
from turbospec_sim.fixed_plans import FixedPlans
from turbospec_sim.run import FIELDS, Run, simulate
from turbospec_sim.sweep import run_all

SMALL = scenario(workload__requests=5)
META = {"command": "simulate", "settings": {"turbospec": "1", "scenarios": {"a": {"server": {"block_size": 16}}}}}


def run(**changes: Any) -> Run:
    return Run(**{"name": "a", "scenario": SMALL, "policy": "off", "rate": 1.0, "seed": 0} | changes)


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return simulate(run())


@pytest.fixture
def file(row: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "r.json"
    FinishedRuns(path, META).add(run(), row)
    return path


def edited(file: Path, **changes: Any) -> Path:
    """The file with other fields in its row; None drops one."""
    document = json.loads(file.read_text())
    for name, value in changes.items():
        document["rows"][0][name] = value
        if value is ...:
            del document["rows"][0][name]
    file.write_text(json.dumps(document))
    return file


def test_the_fields_are_those_of_a_run(row: dict[str, Any]) -> None:
    assert tuple(row) == FIELDS


def test_a_row_comes_back_from_its_file_with_all_digits(file: Path, row: dict[str, Any]) -> None:
    again = FinishedRuns.resumed(file, META).get(run())
    assert again is not None
    del again["run_id"]
    assert math.isnan(row["acceptance_rate"])
    assert again["acceptance_rate"] is None
    assert again["duration"] == row["duration"]
    assert again == plain(row, None)
    assert json.loads(file.read_text())["meta"]["unfinished"] is True


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "b"},
        {"policy": "static-1"},
        {"rate": 1.0000001},
        {"seed": 1},
        {"policy": "best_static", "fixed": FixedPlans(0)},
        {"scenario": scenario(workload__requests=6)},
        {"settings": read_policy(find_policy("static-1"))},
    ],
)
def test_another_run_is_not_finished(changes: dict[str, Any], file: Path) -> None:
    assert FinishedRuns.resumed(file, META).get(run(**changes)) is None


@pytest.mark.parametrize("changes", [{"seed": 7}, {"policy": "adaptive"}, {"rates": [3.0]}, {"description": "mine"}])
def test_what_a_scenario_only_proposes_changes_no_run(changes: dict[str, Any], file: Path) -> None:
    proposed = scenario(workload__requests=5, **changes)
    assert FinishedRuns.resumed(file, META).get(run(scenario=proposed)) is not None


def test_a_policys_file_that_has_changed_is_another_run(row: dict[str, Any], tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("version: 1\npolicy: static\ndraft_length: 2\n")
    mine = run(policy=str(policy))
    FinishedRuns(tmp_path / "r.json", META).add(mine, row)
    policy.write_text("version: 1\npolicy: static\ndraft_length: 3\n")
    assert FinishedRuns.resumed(tmp_path / "r.json", META).get(mine) is None


def test_a_scenarios_file_that_has_changed_is_another_run(row: dict[str, Any], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time,prompt_tokens,output_tokens\n0,10,5\n")
    arrivals = {"process": "trace", "file": str(trace)}
    mine = run(scenario=scenario(workload__arrivals=arrivals, workload__requests=1, rates=[]), rate=None)
    FinishedRuns(tmp_path / "r.json", META).add(mine, row)
    assert FinishedRuns.resumed(tmp_path / "r.json", META).get(mine) is not None
    trace.write_text("arrival_time,prompt_tokens,output_tokens\n0,10,6\n")
    assert FinishedRuns.resumed(tmp_path / "r.json", META).get(mine) is None


def test_the_file_is_not_written_after_every_run(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "r.json", [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    finished = FinishedRuns(path, META)

    def kept() -> int:
        return len(json.loads(path.read_text())["rows"])

    finished.add(run(), row)
    assert kept() == 1
    now[0] = 4.0
    finished.add(run(seed=1), row)
    assert kept() == 1
    now[0] = 6.0
    finished.add(run(seed=2), row)
    assert kept() == 3
    finished.add(run(seed=3), row)
    finished.save()
    assert kept() == 4


def test_a_search_keeps_no_timeline_and_says_its_settings(row: dict[str, Any]) -> None:
    finished = FinishedRuns(fields=FIGURES_ONLY)
    kept = finished.add(run(settings=read_policy(find_policy("static-1"))), row)
    assert "timeline" not in kept
    assert kept["settings"]["draft_length"] == 1


def test_finished_runs_are_not_simulated_again(
    row: dict[str, Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated: list[int] = []
    monkeypatch.setattr("turbospec_sim.sweep.simulate", lambda run: simulated.append(run.seed) or row)
    runs = [run(seed=seed) for seed in (2, 0, 1)]
    rows = list(run_all(runs, finished=FinishedRuns.resumed(file, META)))
    assert simulated == [2, 1]
    assert [one["run_id"] for one in rows] == [FinishedRuns().add(one, row)["run_id"] for one in runs]


@pytest.mark.parametrize(
    "changes",
    [
        {"token_goodput": ...},
        {"token_goodput": None},
        {"token_goodput": "fast"},
        {"mean_e2el_ms": True},
        {"policy": 3},
        {"request_rate": [1]},
        {"slo_met": 1},
        {"timeline": [1]},
        {"timeline": {"seconds": [[1]]}},
        {"run_id": 3},
    ],
)
def test_a_row_that_is_no_run_is_refused(changes: dict[str, Any], file: Path) -> None:
    with pytest.raises(UserError, match=r"r.json: a row is not one that `turbospec simulate` wrote"):
        FinishedRuns.resumed(edited(file, **changes), META)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "r.json: not a results file"),
        ("[]", "not a results file of `turbospec simulate`"),
        ('{"meta": {}, "rows": []}', "not a results file of `turbospec simulate`"),
        ('{"meta": {"command": "tune"}, "rows": []}', "not a results file of `turbospec simulate`"),
        ('{"meta": {"command": "simulate"}, "rows": {}}', "not a results file of `turbospec simulate`"),
        ('{"meta": {"command": "simulate"}, "rows": [{"capacity": 1}]}', "r.json: is finished"),
        ('{"meta": {"command": "simulate", "unfinished": true}, "rows": [1]}', "a row is not one"),
        ('{"meta": {"command": "simulate", "unfinished": true}, "rows": []}', "another `version`"),
    ],
)
def test_another_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        FinishedRuns.resumed(path, META)


def test_other_settings_are_named(file: Path) -> None:
    other = {"turbospec": "1", "scenarios": {"a": {"server": {"block_size": 32}}, "b": {}}}
    with pytest.raises(UserError, match=r"simulated with another `scenarios\.a\.server\.block_size`; use the same"):
        FinishedRuns.resumed(file, META | {"settings": other})


def test_runs_that_are_not_asked_for_are_named(file: Path) -> None:
    finished = FinishedRuns.resumed(file, META)
    finished.refuse_others([run(), run(seed=1)])
    with pytest.raises(UserError, match=r"a run of `a` under `off` at 1.0 requests/s with seed 0, which is not asked"):
        finished.refuse_others([run(seed=1)])
