"""What the benchmarks show of a configuration and of the whole, and where its results come from and go."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from turbospec.cli.console import stdout, table
from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration, Row
from turbospec_bench.reports.rows import COLUMNS, table_line

if TYPE_CHECKING:
    from turbospec_bench.results import Results
    from turbospec_bench.targets import Verdict

VERDICTS = {True: ("met", "green"), False: ("MISSED", "red"), None: ("not judged", "yellow")}


def open_results(resume: Path | None, new: Path | None, meta: dict[str, Any], compared: Sequence[str]) -> Results:
    """New results, or those of an interrupted run.

    Args:
        new: where new ones go; under `runs/` when absent.
        compared: fields of `meta` in which a run that is resumed must be the same.

    Raises:
        UserError: the results to resume are missing, broken, or measured in another way.
    """
    from turbospec_bench.results import Results

    if resume is None:
        return Results(new or Path("runs") / f"bench-{datetime.now():%Y%m%d-%H%M%S}.json", meta)
    results = Results.load(resume)
    if differing := [name for name in compared if results.meta.get(name) != meta[name]]:
        raise UserError(f"{resume}: was measured with another {' and another '.join(differing)}; start a new one")
    return results


def show_configuration(
    results: Results, configuration: Configuration, compare: Callable[[Sequence[Row]], str | None]
) -> None:
    """Print a configuration's table, and under it what `compare` says of its rows."""
    rows = results.of_configuration(configuration)
    shown = table(f"{configuration.name}: medians of {rows[0]['rounds']} rounds", *COLUMNS)
    for row in rows:
        shown.add_row(*table_line(row))
    for column in shown.columns[:3]:
        column.no_wrap = True
    stdout.print(shown)
    if (line := compare(rows)) is not None:
        stdout.print(line, markup=False)


def conclude(results: Results, verdicts: Sequence[Verdict], report: Path | None, pictures: Path | None) -> None:
    """Print the verdicts, and write the results, the report and the pictures."""
    from turbospec_bench.reports.benchmark import write_pictures, write_report

    report = report or results.path.with_suffix(".html")
    results.meta["verdicts"] = [verdict.document() for verdict in verdicts]
    results.save()
    for verdict in verdicts:
        word, style = VERDICTS[verdict.met]
        noise = "within noise" if verdict.within_noise else ""
        stdout.print(Text.assemble((f"{word:<12}", style), f"{noise:<14}{verdict.bar}: ", (verdict.figures, "bold")))
    write_report(report, results.meta, results.rows)
    if pictures is not None:
        write_pictures(pictures, results.rows)
    stdout.print(f"results: {results.path}\nreport:  {report}", soft_wrap=True)


def surroundings() -> dict[str, Any]:
    """When and on what a benchmark ran."""
    names = ("turbospec", "torch", "transformers")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }
