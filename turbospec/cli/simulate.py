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
from turbospec.cli.console import progress, stdout, table
from turbospec.cli.scenario_options import Policies, Rates, Settings, checked_policies, checked_rates
from turbospec.files.writing import check_outputs

if TYPE_CHECKING:
    from turbospec_sim.replications import Replications

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
        int, typer.Option(min=1, help="Replications of each run; seeds count up from the scenario's.")
    ] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes on this machine; default 1.")] = None,
    backend: Annotated[
        Literal["local", "ray"], typer.Option(help="Where to run: on this machine or on a Ray cluster.")
    ] = "local",
    json: Annotated[Path | None, typer.Option(help="Write the results to this file, one row per run.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file; it needs no network.")] = None,
) -> None:
    """Simulate a server under policies: the real controller on a scenario's requests, step times and acceptance."""
    from turbospec.files.results_file import save
    from turbospec_sim.scenario_file import named_scenarios
    from turbospec_sim.sweep import Sweep, run_all, with_regret

    check_outputs(json, report)
    if report is not None:
        # Imports what the report needs: a missing package is reported before hours of simulating.
        import turbospec_bench.reports.simulation  # noqa: F401  # pyright: ignore[reportUnusedImport]
    read = named_scenarios(scenarios, settings or ())
    policies = checked_policies(policy or (), read)
    runs = Sweep(read, policies, checked_rates(rates or (), read), seeds).runs()
    rows: list[dict[str, Any]] = []
    say_when_compiling(jobs or 1)
    with progress() as bar:
        task = bar.add_task("runs", total=len(runs))
        for row in run_all(runs, jobs, backend):
            rows.append(row)
            bar.update(task, advance=1, description=f"{row['scenario']} {row['policy']}")
    rows = with_regret(rows)
    _show(rows)
    meta = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("turbospec", "numpy", "numba")},
        "seeds": seeds,
        "scenarios": {name: scenario.model_dump(mode="json") for name, scenario in read},
    }
    if json is not None:
        save(json, meta, rows)
        stdout.print(f"results: {json}", soft_wrap=True)
    if report is not None:
        from turbospec_bench.reports.simulation import write_report

        write_report(report, meta, rows)
        stdout.print(f"report:  {report}", soft_wrap=True)


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
