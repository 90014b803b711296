"""`turbospec simulate`: policies on simulated servers."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turbospec.cli.compilation import say_when_compiling
from turbospec.cli.console import progress, stderr, stdout, table
from turbospec.cli.resuming import Resume, finished_runs, kept, results_file, say_cost
from turbospec.cli.scenario_options import (
    MOST_JOBS,
    MOST_SEEDS,
    Policies,
    Rates,
    Settings,
    checked_policies,
    checked_rates,
    input_files,
)
from turbospec.files.writing import check_outputs

if TYPE_CHECKING:
    from turbospec_sim.replications import Replications
    from turbospec_sim.scenario import Scenario

COLUMNS = (
    ("policy", "label", ""),
    ("req/s", "load", ""),
    ("P99 TTFT ms", "p99_ttft_ms", ".0f"),
    ("P99 TPOT ms", "p99_tpot_ms", ".1f"),
    ("tokens/s", "output_throughput", ".0f"),
    ("goodput", "token_goodput", ".0f"),
    ("peak requests", "max_concurrent_requests", ".0f"),
    ("K", "mean_draft_length", ".2f"),
    ("SLO", "verdict", ""),
    ("regret: oracle", "regret_vs_oracle", "z.1%"),
    ("best static", "regret_vs_best_static", "z.1%"),
)
"""Column title, field of the row (without a format: attribute of `Replications`), and format."""
NOTHING = "–"


def simulate(
    scenarios: Annotated[list[str], typer.Argument(help="Names or files of scenarios.", metavar="SCENARIO...")],
    policy: Policies = None,
    rates: Rates = None,
    settings: Settings = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=MOST_SEEDS, help="Replications of each run; seeds count up from the scenario's.")
    ] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=MOST_JOBS, help="Processes on this machine; default 1.")
    ] = None,
    backend: Annotated[
        Literal["local", "ray"], typer.Option(help="Where to run: on this machine or on a Ray cluster.")
    ] = "local",
    json: Annotated[
        Path | None, typer.Option(help="Write the results to this file, one row per run, while runs are finished.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file; it needs no network.")] = None,
    resume: Resume = None,
) -> None:
    """Simulate a server under policies: the real controller on a scenario's requests, step times and acceptance."""
    from turbospec.files.results_file import save
    from turbospec_sim.backends import workers
    from turbospec_sim.cost import sweep_cost
    from turbospec_sim.finished import policy_settings, scenario_settings
    from turbospec_sim.scenario_file import named_scenarios
    from turbospec_sim.sweep import Sweep, run_all, with_regret

    json = results_file(json, resume)
    read = named_scenarios(scenarios, settings or ())
    policies = checked_policies(policy or (), read)
    check_outputs(json, report, inputs=input_files(scenarios, policies, read))
    if report is not None:
        # Imports what the report needs: a missing package is reported before hours of simulating.
        import turbospec_bench.reports.simulation  # noqa: F401  # pyright: ignore[reportUnusedImport]
    chosen = checked_rates(rates or (), read)
    processes = workers(backend, jobs).count
    cost = sweep_cost(read, policies, chosen, seeds)
    cost.check_runs(processes)
    runs = Sweep(read, policies, chosen, seeds).runs()
    about = {
        "command": "simulate",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("turbospec", "numpy", "numba")},
        "seeds": seeds,
        "scenarios": {name: scenario.model_dump(mode="json") for name, scenario in read},
    }
    compared = {
        "turbospec": version("turbospec"),
        "scenarios": {name: scenario_settings(scenario) for name, scenario in read},
        "policies": {name: policy_settings(name) for name in sorted({run.policy for run in runs})},
    }
    meta = about | {"settings": compared}
    finished = finished_runs(json, resume, meta)
    finished.refuse_others(runs)
    left = cost.times(1.0 - len(finished) / len(runs))
    left.check(processes)
    say_cost(left, processes)
    _say_cut_periods(read, chosen)
    rows: list[dict[str, Any]] = []
    say_when_compiling(processes)
    with progress() as bar, kept(finished, len(runs)):
        task = bar.add_task("runs", total=len(runs))
        for row in run_all(runs, jobs, backend, finished):
            rows.append(row)
            bar.update(task, advance=1, description=f"{row['scenario']} {row['policy']}")
    rows = with_regret(rows)
    # Files come first: printing ends the command where stdout is closed.
    if json is not None:
        save(json, meta, rows, digits=None)
    if report is not None:
        from turbospec_bench.reports.simulation import write_report

        write_report(report, about, rows)
    _show(rows)
    for name, refused in dict.fromkeys((row["scenario"], row["refused"]) for row in rows if row["refused"]):
        stderr.print(f"{name}: {refused}", soft_wrap=True)
    if json is not None:
        stdout.print(f"results: {json}", soft_wrap=True)
    if report is not None:
        stdout.print(f"report:  {report}", soft_wrap=True)


def _say_cut_periods(scenarios: Sequence[tuple[str, Scenario]], rates: Sequence[float]) -> None:
    """Name scenarios whose requests end before one period of their varying rate, and may miss its peak."""
    for name, scenario in scenarios:
        workload, requests = scenario.workload, scenario.workload.requests or 0
        rate = max((rate for rate in scenario.rates_of_runs(rates) if rate is not None), default=0.0)
        if requests < (enough := workload.whole_period(rate)):
            stderr.print(
                f"{name}: at {rate:g} requests/s its {requests:,} requests end before one period of "
                f"{workload.period_seconds:g} s and may miss the peak; set workload.requests to {enough:,} or more",
                soft_wrap=True,
            )


def _show(rows: Sequence[dict[str, Any]]) -> None:
    """A table for each scenario; figures are means over seeds. Empty columns are left out."""
    from turbospec_sim.replications import replications

    for name, points in replications(rows).items():
        cells = {column: [_cell(point, field, form) for point in points] for column, field, form in COLUMNS}
        filled = {column: own for column, own in cells.items() if any(cell != NOTHING for cell in own)}
        shown = table(name, *filled)
        shown.columns[0].no_wrap = True
        for row in zip(*filled.values(), strict=True):
            shown.add_row(*row)
        stdout.print(shown)


def _cell(point: Replications, field: str, form: str) -> str:
    if not form:
        return getattr(point, field)
    mean = point.mean(field)
    return NOTHING if math.isnan(mean) else format(mean, form)
