"""The benchmark's pictures as SVG. Rows are those of the results file (`turbospec bench --json`)."""

# matplotlib's own annotations leave parts open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turbospec.interface import FloatArray
from turbospec_bench.configuration import Configuration, Row
from turbospec_bench.policy_names import fixed_length
from turbospec_bench.reports.plot_style import INK, TITLE, new_figure, plain_numbers, styled, svg_of
from turbospec_bench.table_rows import policy_name

SPREAD = 0.5
"""Share of a line's height over which policies are spread."""


@styled
def throughput(configurations: Mapping[Configuration, Sequence[Row]], colours: Mapping[str, str]) -> str:
    """Tokens/s of every policy as a ratio to off, one line per configuration; bars are 95 % intervals.

    Here and below, `colours` has the colour of every policy.
    """
    figure, (axes,) = new_figure(8.0, 1.3 + 0.42 * len(configurations), 1)
    labelled: set[str] = set()
    for place, rows in enumerate(configurations.values()):
        shown = [row for row in rows if row["policy"] != "off" and row["emit"] != "after_draft"]
        shown = [row for row in shown if not row["policy"].startswith("transformers-")]
        fixed = [row for row in shown if fixed_length(row["policy"]) is not None]
        others = [row for row in shown if fixed_length(row["policy"]) is None]
        # Beside one another, because their intervals overlap.
        places = [*[place] * len(fixed), *(place + SPREAD * _centred(len(others)))]
        for row, height in zip([*fixed, *others], places, strict=True):
            ratio = row["ratio_to_off"]["output_throughput"]
            label = "fixed K" if row in fixed else row["policy"]
            style: dict[str, Any] = {"color": colours[row["policy"]], "zorder": 2 if row in fixed else 3}
            if row in others:
                axes.plot([ratio["low"], ratio["high"]], [height, height], linewidth=1.5, **style)
            axes.plot(
                ratio["value"],
                height,
                marker="|" if row in fixed else "o",
                markersize=10 if row in fixed else 5,
                markeredgewidth=1.5,
                linestyle="none",
                label=label if label not in labelled else None,
                **style,
            )
            labelled.add(label)
    axes.axvline(1, color=INK, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(configurations)), [configuration.name for configuration in configurations])
    axes.set_ylim(len(configurations) - 0.5, -0.5)
    axes.set_xlabel("output tokens/s ÷ off")
    axes.grid(axis="x", alpha=0.25)
    if labelled:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg_of(figure)


@styled
def latency(rows: Sequence[Row], colours: Mapping[str, str]) -> str:
    """Mean TPOT, and mean and P99 TTFT, of every policy in one configuration."""
    figure, (left, right) = new_figure(8.0, 1.0 + 0.26 * len(rows), 2, sharey=True)
    places = np.arange(len(rows))
    each = [colours[row["policy"]] for row in rows]
    left.barh(places, [row["mean_tpot_ms"] for row in rows], color=each, height=0.65)
    right.barh(places, [row["mean_ttft_ms"] for row in rows], color=each, height=0.65)
    right.plot([row["p99_ttft_ms"] for row in rows], places, linestyle="none", marker="|", markersize=10, color=INK)
    left.set_yticks(places, [policy_name(row) for row in rows])
    left.invert_yaxis()
    for axes, title in ((left, "mean TPOT, ms"), (right, "mean TTFT (bar) and P99 (line), ms")):
        axes.set_title(title, **TITLE)
        axes.grid(axis="x", alpha=0.25)
    return svg_of(figure)


@styled
def timeline(rows: Sequence[Row], colours: Mapping[str, str]) -> str | None:
    """Draft length and acceptance over one run, for the policies that choose K themselves; None without timelines."""
    shown = [row for row in rows if fixed_length(row["policy"]) is None and row["emit"] != "after_draft"]
    shown = [row for row in shown if row.get("timeline")]
    if not shown:
        return None
    figure, (left, right) = new_figure(8.0, 2.6, 2)
    for row in shown:
        series = {name: np.array([_number(value) for value in values]) for name, values in row["timeline"].items()}
        for axes, name in ((left, "draft_length"), (right, "acceptance")):
            axes.plot(series["seconds"], series[name], color=colours[row["policy"]], linewidth=1.4, label=row["policy"])
    right.set_ylim(0, 1)
    for axes, title in ((left, "K: draft tokens per decoding request"), (right, "accepted share of draft tokens")):
        axes.set_title(title, **TITLE)
        axes.set_xlabel("seconds")
        axes.grid(alpha=0.25)
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg_of(figure)


@styled
def step_time(rows: Sequence[Row], colours: Mapping[str, str]) -> str | None:
    """Predicted against measured time of single steps; None where no policy predicts."""
    figure, (axes,) = new_figure(5.2, 3.8, 1)
    extent: list[float] = []
    for policy, colour in colours.items():
        steps = [row["step_times"] for row in rows if row["policy"] == policy and row.get("step_times")]
        predicted = np.array([value for step in steps for value in step["predicted_ms"]])
        measured = np.array([value for step in steps for value in step["measured_ms"]])
        if not len(predicted):
            continue
        error = float(np.median(np.abs(predicted / measured - 1)))
        axes.plot(
            predicted,
            measured,
            linestyle="none",
            marker=".",
            markersize=4,
            alpha=0.5,
            color=colour,
            label=f"{policy}: median error {error:.0%}",
        )
        extent += [*np.percentile(predicted, [0.5, 99.5]), *np.percentile(measured, [0.5, 99.5])]
    if not extent:
        return None
    ends = (max(min(extent), 1e-3) * 0.8, max(extent) * 1.25)
    axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="predicted step time, ms", ylabel="measured, ms")
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis, *ends)
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left")
    return svg_of(figure)


def _centred(count: int) -> FloatArray:
    """So many places from -0.5 to 0.5."""
    return np.linspace(-0.5, 0.5, count) if count > 1 else np.zeros(count)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
