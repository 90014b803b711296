"""`turbospec capacity`: the highest request rate at which a simulated server meets its SLO, by policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turbospec.cli.compilation import say_when_compiling
from turbospec.cli.console import progress, stderr, stdout, table
from turbospec.cli.resuming import Resume, finished_runs, kept, results_file, say_cost
from turbospec.cli.scenario_options import MOST_SEEDS, Jobs, Policies, Settings, checked_policies, input_files
from turbospec.errors import UserError
from turbospec.files.writing import check_outputs

if TYPE_CHECKING:
    from turbospec_sim.capacity import Capacity
    from turbospec_sim.run import Run


def capacity(
    scenarios: Annotated[list[str], typer.Argument(help="Names or files of scenarios.", metavar="SCENARIO...")],
    policy: Policies = None,
    settings: Settings = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, max=MOST_SEEDS, help="Replications of each search; seeds count up from the scenario's."),
    ] = 1,
    tolerance: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Relative width of the rate at which bisection ends.")
    ] = 0.01,
    jobs: Jobs = 1,
    json: Annotated[Path | None, typer.Option(help="Write the results to this file, one row per policy.")] = None,
    resume: Resume = None,
) -> None:
    """Find the highest request rate at which simulated servers meet their SLO, by bisection, under each policy."""
    from turbospec.files.results_file import save
    from turbospec_sim.capacity import FIELDS, FIRST_GUESS, HIGHEST, LOWEST, RUNS, capacities, check, refused
    from turbospec_sim.cost import sweep_cost
    from turbospec_sim.finished import policy_settings, scenario_settings
    from turbospec_sim.scenario_file import named_scenarios
    from turbospec_sim.sweep import Sweep

    json = results_file(json, resume)
    if math.isnan(tolerance):
        raise UserError("--tolerance is not a number; use one from 0.001 to 0.5")
    read = named_scenarios(scenarios, settings or ())
    policies = checked_policies(policy or (), read)
    check_outputs(json, inputs=input_files(scenarios, policies, read))
    runs = Sweep(read, policies, [FIRST_GUESS]).runs()
    for run in runs:
        check(run)
    # Near its capacity a server's batch is full, as if all requests came at once.
    cost = sweep_cost(read, policies, [math.inf], seeds).times(RUNS)
    cost.check_runs(jobs)
    meta = {
        "command": "capacity",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: version(name) for name in ("turbospec", "numpy", "numba")},
        "seeds": seeds,
        "tolerance": tolerance,
        "scenarios": {name: scenario.model_dump(mode="json") for name, scenario in read},
        "settings": {
            "turbospec": version("turbospec"),
            "tolerance": tolerance,
            "scenarios": {name: scenario_settings(scenario) for name, scenario in read},
            "policies": {name: policy_settings(name) for name in sorted({run.policy for run in runs})},
        },
    }
    finished = finished_runs(json, resume, meta, FIELDS)
    searches = len(runs) * seeds
    left = cost.times(max(0.0, 1.0 - len(finished) / searches))
    left.check(jobs)
    say_cost(left, jobs)
    say_when_compiling(jobs)
    with progress() as bar, kept(finished, searches):
        task = bar.add_task("searches", total=searches)
        found = capacities(
            runs, seeds=seeds, jobs=jobs, tolerance=tolerance, done=lambda: bar.advance(task), finished=finished
        )
    rows = _rows(runs, found)
    # The file comes first: printing ends the command where stdout is closed.
    if json is not None:
        save(json, meta, rows)
    _show(rows)
    for row in rows:
        if max(row["capacity_by_seed"]) >= HIGHEST:
            said = f"the search ends at {HIGHEST:g} requests/s, at which the SLO is still met"
            stderr.print(f"{row['scenario']}, {row['policy']}: {said}", soft_wrap=True)
        elif min(row["capacity_by_seed"]) == 0.0:
            said = f"the SLO is missed even at {LOWEST:g} requests/s"
            run = next(run for run in runs if run.name == row["scenario"])
            seed = run.seed + row["capacity_by_seed"].index(0.0)
            if (reason := refused(replace(run, seed=seed))) is not None:
                said = f"the SLO is missed at any rate with seed {seed}: {reason}"
            stderr.print(f"{row['scenario']}, {row['policy']}: {said}", soft_wrap=True)
    if json is not None:
        stdout.print(f"results: {json}", soft_wrap=True)


def _rows(runs: Sequence[Run], found: Sequence[Capacity]) -> list[dict[str, Any]]:
    """One row for each scenario and policy; for `best_static`, that of the best fixed plans."""
    from turbospec_sim.fixed_plans import chosen

    best: dict[tuple[str, str], tuple[Capacity, Run]] = {}
    for run, capacity in zip(runs, found, strict=True):
        key = run.name, run.policy
        if key not in best or capacity.mean > best[key][0].mean:
            best[key] = capacity, run
    rows: list[dict[str, Any]] = []
    first: dict[str, Capacity] = {}
    for (scenario, policy), (capacity, run) in best.items():
        ratio = capacity.over(first.setdefault(scenario, capacity))
        rows.append(
            {
                "scenario": scenario,
                "policy": policy,
                **chosen(run.fixed),
                "capacity": capacity.mean,
                "standard_error": capacity.standard_error,
                "capacity_by_seed": list(capacity.rates),
                "ratio": None if ratio is None else ratio.mean,
                "ratio_low": None if ratio is None else ratio.low,
                "ratio_high": None if ratio is None else ratio.high,
            }
        )
    return rows


def _show(rows: Sequence[dict[str, Any]]) -> None:
    """A table for each scenario, with ratios to its first policy."""
    from turbospec_sim.fixed_plans import chosen_in_words

    for name, group in groupby(rows, key=lambda row: row["scenario"]):
        shown = table(name, "policy", "req/s", "± error", "ratio to the first", "95 % interval")
        for row in group:
            words = chosen_in_words(row)
            shown.add_row(
                f"{row['policy']} ({words})" if words else row["policy"],
                f"{row['capacity']:.3g}",
                _figure(row["standard_error"], ".2g"),
                _figure(row["ratio"], ".3f"),
                " to ".join(_figure(row[end], ".3f") for end in ("ratio_low", "ratio_high")),
            )
        stdout.print(shown)


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None or math.isnan(value) else format(value, form)
