"""The benchmark's report: one HTML file without any reference to the network, rendered from the results file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from turbospec.files.whole_file import write_whole
from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.reports import benchmark_plots as plots
from turbospec_bench.reports.page import details, page
from turbospec_bench.reports.plot_style import standalone
from turbospec_bench.reports.rows import COLUMNS, table_line

OPEN_CONFIGURATIONS = 3
"""Cells whose details are open when the page is."""


def write_report(path: Path, meta: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the report of a results file's `meta` and `rows`: verdicts, tables, then pictures."""
    write_whole(path, render(meta, rows))


def write_pictures(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write every picture as an SVG file that is readable on light and dark, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, svg in _pictures(rows):
        written.append(folder / f"{name}.svg")
        written[-1].write_text(standalone(svg), encoding="utf-8")
    return written


def render(meta: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The report as one HTML document."""
    configurations = by_configuration(rows)
    parts = [
        f"<p>{escape(_setting(meta))}</p>",
        _verdicts(meta.get("verdicts", [])),
        "<h2>Throughput</h2>",
        plots.throughput(configurations),
        "<h2>Predicted against measured step time</h2>",
        plots.step_time(rows) or "<p>No policy in these rows predicts step times.</p>",
        "<h2>Cells</h2>",
        *(
            _cell(configuration, own, place < OPEN_CONFIGURATIONS)
            for place, (configuration, own) in enumerate(configurations.items())
        ),
    ]
    return page("TurboSpec benchmark", parts)


def _pictures(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    configurations = by_configuration(rows)
    yield "throughput", plots.throughput(configurations)
    if step_time := plots.step_time(rows):
        yield "step-time", step_time
    for configuration, own in configurations.items():
        stem = configuration.name.replace("/", "-")
        yield f"latency-{stem}", plots.latency(own)
        if timeline := plots.timeline(own):
            yield f"timeline-{stem}", timeline


def _setting(meta: Mapping[str, Any]) -> str:
    return " · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in meta.items() if name != "verdicts")


def _verdicts(verdicts: Sequence[Mapping[str, Any]]) -> str:
    words = {True: ("met", "met"), False: ("missed", "missed"), None: ("", "not judged")}
    lines = [
        f"<tr><td class='{words[verdict['met']][0]}'>{words[verdict['met']][1]}</td>"
        f"<td>{'within noise' if verdict['within_noise'] else ''}</td>"
        f"<td>{escape(verdict['bar'])}</td><td>{escape(verdict['figures'])}</td></tr>"
        for verdict in verdicts
    ]
    return (
        "<h2>Bars</h2><p>Met or missed by the point estimates. <em>Within noise</em>: their 95 % intervals reach "
        "across the bar, so more rounds may turn the verdict.</p>"
        f"<table class='words'><tr><th></th><th></th><th>bar</th><th>measured</th></tr>{''.join(lines)}</table>"
    )


def _cell(configuration: Configuration, rows: Sequence[Row], opened: bool) -> str:
    timeline = plots.timeline(rows)
    pictures = plots.latency(rows) + (f"<p>Over the last round:</p>{timeline}" if timeline else "")
    return details(configuration.name, _table(rows) + pictures, opened)


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    return f"<table><tr>{head}</tr>{''.join(_line(row) for row in rows)}</table>"


def _line(row: Row) -> str:
    mark = " class='adaptive'" if row["policy"] == "adaptive" else ""
    return f"<tr{mark}>{''.join(f'<td>{escape(value)}</td>' for value in table_line(row))}</tr>"
