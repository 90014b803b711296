"""The benchmark's report: one HTML file without any reference to the network, rendered from the results file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turbospec.files.writing import write_whole
from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.reports import benchmark_plots as plots
from turbospec_bench.reports.page import render_page
from turbospec_bench.reports.plot_style import colours_of, standalone
from turbospec_bench.summary import findings
from turbospec_bench.table_rows import COLUMNS, disturbance, table_line

OPEN_CONFIGURATIONS = 3
"""Configurations whose details are open when the page is opened."""


def write_report(path: Path, meta: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the report of a results file's `meta` and `rows`: what they show in words, then pictures and tables."""
    write_whole(path, render(meta, rows))


def write_pictures(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write every picture as an SVG file that is readable on light and dark, and return their paths.

    Raises:
        UserError: a file cannot be written.
    """
    written: list[Path] = []
    for name, svg in _pictures(rows):
        written.append(folder / f"{name}.svg")
        write_whole(written[-1], standalone(svg))
    return written


def render(meta: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The report as one HTML document."""
    configurations, colours = by_configuration(rows), _colours(rows)
    return render_page(
        "benchmark.html",
        setting=_setting(meta),
        findings=findings(rows),
        throughput=plots.throughput(configurations, colours),
        step_time=plots.step_time(rows, colours),
        columns=COLUMNS,
        open_configurations=OPEN_CONFIGURATIONS,
        configurations=[_details(configuration, own, colours) for configuration, own in configurations.items()],
    )


def _colours(rows: Sequence[Row]) -> Mapping[str, str]:
    return colours_of(row["policy"] for row in rows)


def _details(configuration: Configuration, rows: Sequence[Row], colours: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": f"{configuration.name}: medians of {rows[0]['rounds']} rounds",
        "disturbance": disturbance(rows),
        "lines": [(row["policy"], table_line(row)) for row in rows],
        "latency": plots.latency(rows, colours),
        "timeline": plots.timeline(rows, colours),
    }


def _pictures(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    configurations, colours = by_configuration(rows), _colours(rows)
    yield "throughput", plots.throughput(configurations, colours)
    if step_time := plots.step_time(rows, colours):
        yield "step-time", step_time
    for configuration, own in configurations.items():
        stem = configuration.name.replace("/", "-")
        yield f"latency-{stem}", plots.latency(own, colours)
        if timeline := plots.timeline(own, colours):
            yield f"timeline-{stem}", timeline


def _setting(meta: Mapping[str, Any]) -> str:
    """How it was measured; tuned tables, which are long, stay in the results file."""
    said = {name: value for name, value in meta.items() if isinstance(value, str | int | float)}
    return " · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in said.items())
