from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turbospec import UserError
from turbospec.observability.trace import DecisionTrace
from turbospec_bench.ablation import __main__ as command
from turbospec_bench.ablation.cases import PROFILES, RecordedCase, changing_cases, shipped_cases, synthetic_cases
from turbospec_bench.ablation.checkpoint import Checkpoint, sources_digest
from turbospec_bench.ablation.profiles import profile_of
from turbospec_bench.ablation.runs import fixed_lengths, run_case
from turbospec_bench.ablation.table import best_fixed, changed_share, effect
from turbospec_sim.run import Run, simulate
from turbospec_sim.scenario_file import shipped_scenarios

SMALL = ["--shorter", "20", "--only", "gpu-8b 1 weak *", "--concurrency", "1", "--profile", "none", "--seeds", "2"]


def row(case: str, mechanism: str, seed: int, goodput: float, decisions: int = 0, **parts: float) -> dict[str, Any]:
    return {
        "case": case,
        "mechanism": mechanism,
        "seed": seed,
        "token_goodput": goodput,
        "output_throughput": goodput,
        "p99_ttft_ms": 100.0,
        "decisions": decisions,
        "parts": parts,
    }


def test_rows_are_simulated_once_and_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, page = tmp_path / "rows.json", tmp_path / "table.md"
    arguments = [*SMALL, "--mechanism", "drift", "--mechanism", "experiments", "--json", str(results)]
    assert command.main(arguments) == 0
    first = results.read_text()
    out, err = capsys.readouterr()
    assert "6 runs, 0 of them done before" in err
    assert len(json.loads(first)["rows"]) == 6
    assert command.main([*arguments, "--markdown", str(page)]) == 0
    again, err = capsys.readouterr()
    assert "6 runs, 6 of them done before" in err
    assert results.read_text() == first
    assert again == out
    assert "| experiments | `horizon` = 0 |" in page.read_text()
    more = [*arguments, "--fixed"]
    command.main(more)
    out, err = capsys.readouterr()
    assert "18 runs, 6 of them done before" in err
    assert "best K" in out


def test_several_processes_run_the_command_as_a_user_starts_it(tmp_path: Path) -> None:
    """Its functions must be found in the other processes."""
    results = tmp_path / "rows.json"
    arguments = [*SMALL, "--mechanism", "drift", "--jobs", "2", "--json", str(results)]
    subprocess.run([sys.executable, "-m", "turbospec_bench.ablation", *arguments], check=True, capture_output=True)
    assert len(json.loads(results.read_text())["rows"]) == 4


def test_effects_are_confirmed_by_further_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "rows.json"
    arguments = ["--shorter", "20", "--only", "gpu-8b 8 good none", "--seeds", "1", "--json", str(results)]
    named = ["--mechanism", "drift", "--mechanism", "catch-up-spread"]
    command.main([*arguments, *named, "--mechanism", "first-token-price", "--confirm", "2"])
    rows = {(row["mechanism"], row["seed"]): row["token_goodput"] for row in json.loads(results.read_text())["rows"]}
    for name in ("drift", "catch-up-spread", "first-token-price"):
        differs = abs(math.log(rows[name, 0] / rows["nothing", 0])) >= 0.006
        assert ((name, 2) in rows) == differs
    assert ("drift", 2) not in rows
    assert ("first-token-price", 2) in rows
    # The seed that chose the case does not count.
    logs = [math.log(rows["first-token-price", seed] / rows["nothing", seed]) for seed in (1, 2)]
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("first-token-price"))
    assert f" {math.exp(sum(logs) / 2):.4f} " in line


def test_rows_of_other_settings_are_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    checkpoint = Checkpoint(path, {"sources": "a"})
    checkpoint.add(row("c", "nothing", 0, 1.0))
    checkpoint.save()
    assert ("c", "nothing", 0) in Checkpoint(path, {"sources": "a"})
    before = path.read_text()
    with pytest.raises(UserError, match="has rows of other sources, traces or --shorter; name another"):
        Checkpoint(path, {"sources": "b"})
    assert path.read_text() == before
    path.write_text("[]")
    with pytest.raises(UserError, match="not rows of an ablation"):
        Checkpoint(path, {"sources": "a"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanism", "experimentz"], "--mechanism experimentz: no such mechanism; did you mean `experiments`?"),
        (["--only", "rush-houR*"], "--only rush-houR*: no such case or group; known: changes, cpu"),
        (["--shorter", "0.5"], "--shorter: a factor from 1 to 1000"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError) as error:
        command.main(arguments)
    assert str(error.value).startswith(words)


def test_effects_are_paired_by_case_and_seed() -> None:
    rows = [
        row("a", "nothing", 0, 100.0), row("a", "x", 0, 99.0, 1),
        row("a", "nothing", 1, 50.0), row("a", "x", 1, 49.0, 1),
        row("b", "nothing", 0, 10.0), row("b", "x", 0, 11.0, 1), row("b", "nothing", 1, 20.0), row("b", "x", 1, 20.0),
        row("b", "x", 2, 5.0),
    ]  # fmt: skip
    found = effect(rows, "x", "token_goodput", {"a", "b"})
    assert found.cases["a"] == pytest.approx(0.5 * (math.log(0.99) + math.log(0.98)))
    assert found.cases["b"] == pytest.approx(0.5 * math.log(1.1))
    assert found.worst()[0] == "a"
    assert (found.losing(), found.gaining()) == (["a"], [])
    assert changed_share(rows, "x") == 0.75
    assert math.isnan(effect(rows, "y", "token_goodput", {"a"}).mean)


def test_a_run_that_served_nothing_counts_as_the_largest_loss() -> None:
    nothing_served = row("a", "x", 0, 0.0) | {"p99_ttft_ms": None}
    rows = [row("a", "nothing", 0, 100.0), nothing_served, row("b", "nothing", 0, 0.0), row("b", "x", 0, 0.0)]
    assert effect(rows, "x", "token_goodput", {"a", "b"}).cases == {"a": -math.log(100.0), "b": 0.0}
    assert effect(rows, "x", "p99_ttft_ms", {"a"}).cases == {"a": math.log(100.0)}
    assert best_fixed([row("a", "nothing", 0, 0.0), row("a", "fixed-0", 0, 0.0)])[1][1:3] == ["0", "–"]


def test_an_edited_scenario_is_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, scenario = sources_digest(), tmp_path / "drift.yaml"
    monkeypatch.setattr("turbospec_bench.ablation.checkpoint.shipped_scenarios", lambda: {"drift": scenario})
    found: set[str] = {before}
    for text in ("version: 1", "version: 2"):
        scenario.write_text(text)
        found.add(sources_digest())
    assert len(found) == 3


def test_traces_of_the_same_name_are_different_cases() -> None:
    assert RecordedCase(Path("a/round-1.jsonl")).name != RecordedCase(Path("b/round-1.jsonl")).name


def test_the_best_fixed_length_is_chosen_for_each_phase() -> None:
    rows = [
        row("a", "nothing", 0, 100.0, **{"phase-0": 90.0, "phase-1": 40.0}),
        row("a", "fixed-0", 0, 80.0, **{"phase-0": 50.0, "phase-1": 50.0}),
        row("a", "fixed-3", 0, 110.0, **{"phase-0": 100.0, "phase-1": 20.0}),
        row("a", "nothing", 1, 1000.0),  # a seed that no fixed length was run with
    ]
    found = [line[:3] for line in best_fixed(rows)[1:]]
    assert found == [["a", "3", "0.909"], ["a, phase-0", "3", "0.900"], ["a, phase-1", "0", "0.800"]]


def test_a_recorded_run_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    made = next(synthetic_cases(20.0, concurrencies=(1,), profiles=("none",))).scenario
    with DecisionTrace(path) as trace:
        simulate(Run("s", made, "static-3", None, 0), listeners=(trace,))
    whole, without = (run_case(RecordedCase(path), name, 0) for name in ("nothing", "experiments"))
    assert whole["token_goodput"] > 0.0
    assert without["decisions"] != whole["decisions"]
    assert fixed_lengths(RecordedCase(path)) == []


def test_all_scenarios_and_all_engines_are_cases() -> None:
    shipped = list(shipped_cases(5.0))
    assert {case.name.split()[0] for case in shipped} == set(shipped_scenarios())
    names = [case.name for case in (*shipped, *synthetic_cases(), *changing_cases())]
    assert len(set(names)) == len(names)
    assert {"gpu-70b 1024 useless verify-halved", "cpu 64 good none", "rush-hour 12/s"} <= set(names)
    day = next(case.scenario for case in shipped if case.name == "rush-hour 12/s")
    assert day.workload.requests == 1440
    assert day.workload.arrivals.model_dump()["period_seconds"] == 120.0


def test_profiles_are_wrong_in_the_part_that_they_are_named_for() -> None:
    scenario = next(synthetic_cases(10.0, concurrencies=(8,), profiles=("none",))).scenario
    right = profile_of(scenario, "right")
    assert right is not None
    for kind in PROFILES[2:]:
        wrong = profile_of(scenario, kind)
        assert wrong is not None
        part, factor = kind.split("-")
        for good, bad in zip(right.samples, wrong.samples, strict=True):
            ratio = 2.0 if factor == "doubled" else 0.5
            assert getattr(bad, f"{part}_seconds") == pytest.approx(ratio * getattr(good, f"{part}_seconds"))
            rest = [each.step_seconds - each.draft_seconds - each.verify_seconds for each in (good, bad)]
            assert rest[0] == pytest.approx(rest[1])
    assert profile_of(scenario, "none") is None
