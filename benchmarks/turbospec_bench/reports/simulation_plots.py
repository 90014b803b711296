"""Pictures of simulated runs as SVG: loads against figures, a run over time, and where the time went."""

# matplotlib's own annotations leave parts open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from turbospec.interface import FloatArray
from turbospec_bench.policy_names import fixed_length
from turbospec_bench.reports.plot_style import FIXED, INK, TITLE, colours_of, new_figure, plain_numbers, styled, svg_of
from turbospec_sim.replications import Replications
from turbospec_sim.run import BEST_STATIC, ORACLE

FIGURES = (
    ("p99_ttft_ms", "median_ttft_ms", "TTFT, ms"),
    ("p99_tpot_ms", "median_tpot_ms", "TPOT, ms"),
    ("output_throughput", None, "output tokens/s"),
    ("max_concurrent_requests", None, "peak concurrent requests"),
)
"""A field, a second field drawn beside it, and their title."""
SERIES = (
    ("draft_length", "K: draft tokens per decoding request"),
    ("acceptance", "accepted share of draft tokens"),
    ("running_requests", "running requests"),
    ("waiting_requests", "waiting requests"),
)
PARTS = (
    ("host", "host", "#9aa4b2"),
    ("draft", "draft", "#e4572e"),
    ("prefill", "prefill", "#d4a017"),
    ("verify", "verify, without prefill", "#3b82f6"),
)
"""Parts of a step's time."""
LINE_STYLES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
"""Of fixed draft lengths, in turn."""
LOG_FROM = 30.0
"""From this ratio of the largest to the smallest value an axis is logarithmic."""
HOURS_FROM = 7200.0
"""From this many simulated seconds a run's time is in hours."""
COLUMNS = 4
"""Pictures of loads side by side."""


@styled
def against_load(points: Sequence[Replications], limits: Mapping[str, float]) -> str:
    """The figures of every policy against the rate, or side by side where there is one load only.

    Args:
        points: a scenario's runs.
        limits: the SLO's, by field.
    """
    rates = {point.rate for point in points if isinstance(point.rate, float)}
    return _lines(points, limits) if len(rates) > 1 else _bars(points, limits)


@styled
def timeline(points: Sequence[Replications]) -> str | None:
    """Draft length, acceptance and queues over each policy's run with the first seed; None without timelines."""
    shown = [point for point in points if point.rows[0].get("timeline")]
    if not shown:
        return None
    looks = _looks(shown)
    figure, panels = new_figure(8.0, 4.6, 2, 2)
    longest = max(point.rows[0]["timeline"]["seconds"][-1] for point in shown)
    unit, name = (3600.0, "hours") if longest >= HOURS_FROM else (1.0, "seconds")
    for axes, (field, title) in zip(panels, SERIES, strict=True):
        for point in shown:
            series = point.rows[0]["timeline"]
            seconds, values = (np.array(series[key], np.float64) for key in ("seconds", field))
            axes.plot(seconds / unit, values, drawstyle="steps-post", label=point.label, **looks[point.policy])
        axes.set_title(title, **TITLE)
        axes.set_ylim(0, 1 if field == "acceptance" else max(1.05, axes.get_ylim()[1]))
        axes.set_xlim(0, max(longest / unit, 1e-3))
        axes.set_xlabel(f"{name} simulated")
        axes.grid(alpha=0.25)
    _legend(figure, panels[0])
    return svg_of(figure)


@styled
def step_time(points: Sequence[Replications]) -> str:
    """Shares of step time by policy, one panel per load."""
    loads = list(dict.fromkeys(point.load for point in points))
    columns = min(COLUMNS, len(loads))
    policies = list(dict.fromkeys(point.policy for point in points))
    rows = math.ceil(len(loads) / columns)
    figure, panels = new_figure(8.0, 0.6 + rows * (0.5 + 0.22 * len(policies)), columns, rows, sharey=True)
    for axes, load in zip(panels, loads, strict=False):
        own = [point for point in points if point.load == load]
        places = np.array([policies.index(point.policy) for point in own])
        left = np.zeros(len(own))
        for part, label, colour in PARTS:
            shares = np.array([point.mean(f"{part}_time_share") for point in own])
            if part == "verify":
                shares -= [point.mean("prefill_time_share") for point in own]
            axes.barh(places, shares, left=left, color=colour, height=0.7, label=label)
            left += shares
        axes.set_title(own[0].load_name, **TITLE)
        axes.set_xlim(0, 1)
    for axes in panels[len(loads) :]:
        axes.set_visible(False)
    panels[0].set_yticks(range(len(policies)), policies)
    panels[0].invert_yaxis()
    _legend(figure, panels[0])
    return svg_of(figure)


def _lines(points: Sequence[Replications], limits: Mapping[str, float]) -> str:
    looks = _looks(points)
    figure, panels = new_figure(8.0, 5.4, 2, 2)
    for axes, (field, beside, title) in zip(panels, FIGURES, strict=True):
        for policy, look in looks.items():
            own = sorted((point for point in points if point.policy == policy), key=lambda point: float(point.rate))
            rates = np.array([float(point.rate) for point in own])
            means, halves = _means(own, field)
            axes.plot(rates, means, marker="o", markersize=3, label=policy, **look)
            axes.errorbar(rates, means, yerr=halves, fmt="none", ecolor=look["color"], elinewidth=1, alpha=0.7)
            if beside:
                axes.plot(rates, _means(own, beside)[0], color=look["color"], linewidth=0.8, alpha=0.6)
        if field in limits:
            axes.axhline(limits[field], color=INK, linewidth=0.8, linestyle="--")
        if _spans_widely(points, field):
            axes.set_yscale("log")
            plain_numbers(axes.yaxis, *axes.get_ylim())
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(f"{title}: P99, and the median as a thin line" if beside else title, **TITLE)
        axes.set_xlabel("requests/s")
        axes.grid(alpha=0.25)
    _legend(figure, panels[0])
    return svg_of(figure)


def _bars(points: Sequence[Replications], limits: Mapping[str, float]) -> str:
    looks = _looks(points)
    figure, panels = new_figure(8.0, 1.6 + 0.48 * len(points), 2, 2, sharey=True)
    places = np.arange(len(points))
    colours = [looks[point.policy]["color"] for point in points]
    for axes, (field, beside, title) in zip(panels, FIGURES, strict=True):
        means, halves = _means(points, field)
        axes.barh(places, means, color=colours, height=0.65)
        axes.errorbar(means, places, xerr=halves, fmt="none", ecolor=INK, elinewidth=1)
        if beside:
            medians = _means(points, beside)[0]
            axes.plot(medians, places, linestyle="none", marker="|", markersize=9, color=INK)
        if field in limits:
            axes.axvline(limits[field], color=INK, linewidth=0.8, linestyle="--")
        if _spans_widely(points, field):
            axes.set_xscale("log")
            plain_numbers(axes.xaxis, *axes.get_xlim())
        else:
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.set_title(f"{title}: P99 (bar) and median (line)" if beside else title, **TITLE)
        axes.grid(axis="x", alpha=0.25)
    panels[0].set_yticks(places, [point.label for point in points])
    panels[0].invert_yaxis()
    return svg_of(figure)


def _means(points: Sequence[Replications], field: str) -> tuple[FloatArray, FloatArray]:
    """Means and half-widths of their intervals, NaN where there are none."""
    return (
        np.array([point.mean(field) for point in points]),
        np.array([point.half_width(field) for point in points]),
    )


def _spans_widely(points: Sequence[Replications], field: str) -> bool:
    means = _means(points, field)[0]
    means = means[means > 0.0]
    return len(means) > 0 and means.max() / means.min() >= LOG_FROM


def _looks(points: Sequence[Replications]) -> dict[str, dict[str, Any]]:
    """Colour and line of every policy: greys for fixed lengths, one line style each."""
    lines, looks = cycle(LINE_STYLES), dict[str, dict[str, Any]]()
    shown = [point.policy for point in points]
    colours = colours_of(policy for policy in shown if policy not in (ORACLE, BEST_STATIC))
    for policy in dict.fromkeys(shown):
        look: dict[str, Any] = {"linestyle": "-", "linewidth": 1.4, "zorder": 3 if policy == "adaptive" else 2}
        if policy == ORACLE:
            look |= {"color": "#0891b2", "linestyle": ":"}
        elif policy == BEST_STATIC:
            look |= {"color": "#64748b", "linestyle": "-."}
        elif fixed_length(policy) == 0:
            look |= {"color": FIXED}
        elif fixed_length(policy) is not None:
            look |= {"color": FIXED, "linestyle": next(lines)}
        else:
            look |= {"color": colours[policy]}
        looks[policy] = look
    return looks


def _legend(figure: Any, axes: Any) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
