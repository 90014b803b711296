"""`turbospec simulate`: scenarios under policies, offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from turbospec.cli.console import progress, stdout, table
from turbospec.cli.rates import checked_rates

COLUMNS = (
    "policy",
    "req/s",
    "P99 TTFT ms",
    "P99 TPOT ms",
    "tokens/s",
    "goodput",
    "peak requests",
    "K",
    "SLO",
    "regret: oracle",
    "best static",
)


def simulate(
    scenarios: Annotated[list[str], typer.Argument(help="Names or files of scenarios.", metavar="SCENARIO...")],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Name or file of a policy, oracle or best_static; repeat for several. Else the scenario's."),
    ] = None,
    rates: Annotated[
        list[str] | None, typer.Option(help="Requests a second, with commas between several. Else the scenario's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="field=value in place of the scenario's, as in server.max_num_seqs=1024."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each run, counting up from the scenario's.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to run in.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Results, one row a run.")] = None,
) -> None:
    """Simulate a server under a policy: the real controller, requests, clock and models by a scenario file."""
    from turbospec_sim.results import save
    from turbospec_sim.run import check_policy
    from turbospec_sim.scenario_file import find_scenario, read_scenario
    from turbospec_sim.sweep import Sweep, concluded, run_all

    paths = [find_scenario(source) for source in scenarios]
    read = [(path.stem, read_scenario(path, settings or ())) for path in paths]
    for name in policy or [scenario.policy for _, scenario in read]:
        check_policy(name)
    chosen = checked_rates(rates or (), read)
    runs = Sweep(read, policy or (), chosen, seeds).runs()
    rows: list[dict[str, Any]] = []
    with progress() as bar:
        task = bar.add_task("runs", total=len(runs))
        for row in run_all(runs, jobs):
            rows.append(row)
            bar.update(task, advance=1, description=f"{row['scenario']} {row['policy']}")
    rows = concluded(rows)
    _show(rows)
    if json is not None:
        meta = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "turbospec": version("turbospec"),
            "seeds": seeds,
            "scenarios": {name: scenario.model_dump(mode="json") for name, scenario in read},
        }
        save(json, meta, rows)
        stdout.print(f"results: {json}", soft_wrap=True, markup=False)


def _show(rows: Sequence[dict[str, Any]]) -> None:
    """A table for each scenario; figures are means over the seeds."""
    for name in dict.fromkeys(row["scenario"] for row in rows):
        shown = table(name, *COLUMNS)
        shown.columns[0].no_wrap = True
        groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
        for row in rows:
            if row["scenario"] == name:
                groups.setdefault((row["policy"], row["request_rate"]), []).append(row)
        for (policy, rate), same in groups.items():
            shown.add_row(
                _label(policy, same),
                f"{rate:g}" if isinstance(rate, float) else f"{same[0]['concurrency']} at once",
                *(_mean(same, field, form) for field, form in FIGURES),
                _verdict(same),
                *(_mean(same, f"regret_vs_{yardstick}", ".1%") for yardstick in ("oracle", "best_static")),
            )
        stdout.print(shown)


FIGURES = (
    ("p99_ttft_ms", ".0f"),
    ("p99_tpot_ms", ".1f"),
    ("output_throughput", ".0f"),
    ("token_goodput", ".0f"),
    ("max_concurrent_requests", ".0f"),
    ("mean_draft_length", ".2f"),
)


def _label(policy: str, rows: Sequence[dict[str, Any]]) -> str:
    lengths = sorted({row["draft_length"] for row in rows if row["draft_length"] is not None})
    return f"{policy} ({', '.join(f'K={length}' for length in lengths)})" if lengths else policy


def _mean(rows: Sequence[dict[str, Any]], field: str, form: str) -> str:
    values = [row[field] for row in rows if row[field] is not None and math.isfinite(row[field])]
    return format(float(np.mean(values)), form) if values else "–"


def _verdict(rows: Sequence[dict[str, Any]]) -> str:
    verdicts = [row["slo_met"] for row in rows if row["slo_met"] is not None]
    if not verdicts:
        return "–"
    if len(verdicts) == 1:
        return "met" if verdicts[0] else "missed"
    return f"met in {sum(verdicts)} of {len(verdicts)}"
