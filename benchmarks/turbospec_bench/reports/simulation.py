"""The report of a sweep: one HTML file without any reference to the network, rendered from the results file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from turbospec.files.whole_file import write_whole
from turbospec_bench.reports.page import details, page
from turbospec_bench.reports.simulation_plots import against_load, step_time, timeline
from turbospec_sim.replications import Replications, Row, replications

LIMITS = {"p99_ttft_ms": "P99 TTFT", "p99_tpot_ms": "P99 TPOT"}
YARDSTICKS = {"regret_vs_oracle": "the oracle", "regret_vs_best_static": "the best static length in hindsight"}
COLUMNS = (
    ("P99 TTFT ms", "p99_ttft_ms", ".0f"),
    ("mean TTFT ms", "mean_ttft_ms", ".0f"),
    ("P99 TPOT ms", "p99_tpot_ms", ".1f"),
    ("mean TPOT ms", "mean_tpot_ms", ".1f"),
    ("tokens/s", "output_throughput", ".0f"),
    ("goodput", "token_goodput", ".0f"),
    ("peak requests", "max_concurrent_requests", ".0f"),
    ("K", "mean_draft_length", ".2f"),
    ("acceptance", "acceptance_rate", ".2f"),
    ("preemptions", "preemptions", ".0f"),
)
OPEN_TIMELINES = 2
"""Loads of a scenario whose course is open when the page is."""


def write_report(path: Path, meta: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the report of a results file's `meta` and `rows`."""
    write_whole(path, render(meta, rows))


def render(meta: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The report as one HTML document: every scenario's verdicts, then its pictures and tables."""
    setting = " · ".join(f"{name}: {value}" for name, value in meta.items() if name != "scenarios")
    several = "Figures are means over the seeds, ± half of their 95 % confidence interval." if meta["seeds"] > 1 else ""
    parts = [
        f"<p>{escape(setting)}</p>",
        f"<p>Simulated: the controller is real, the engine, its requests and its clock are not. {several}</p>",
    ]
    for name, points in replications(rows).items():
        parts += _scenario(name, meta["scenarios"][name], points)
    return page("TurboSpec simulation", parts)


def _scenario(name: str, scenario: Mapping[str, Any], points: Sequence[Replications]) -> list[str]:
    limits = {field: limit for field, limit in (scenario["slo"] or {}).items() if limit is not None}
    regrets = {field: said for field, said in YARDSTICKS.items() if points[0].rows[0][field] is not None}
    seeds = sorted({row["seed"] for point in points for row in point.rows})
    document = yaml.safe_dump(dict(scenario), sort_keys=False, allow_unicode=True)
    parts = [
        f"<h2>{escape(name)}</h2>",
        f"<p>{escape(scenario['description'])}</p>" if scenario["description"] else "",
        f"<p>{escape(_facts(scenario, seeds))}</p>",
        details("The scenario as it was simulated", f"<pre>{escape(document)}</pre>", False),
        "<h3>SLO</h3>",
        f"<p>{_slo_words(limits)}</p>",
        _matrix(points, lambda point: _slo_cell(point, limits)),
        "<h3>Against load</h3>",
        against_load(points, limits),
        details("All figures", _figures_table(points), False),
        "<h3>Over simulated time</h3>",
        f"<p>Of the runs with seed {seeds[0]}.</p>",
        *_timelines(points),
        "<h3>Where the step time went</h3>",
        "<p>Prefill is what prompts added to the target's pass.</p>",
        step_time(points),
    ]
    for field, said in regrets.items():
        parts += [
            f"<h3>Regret against {said}</h3>",
            "<p>The part of its goodput, the tokens a second of requests within the SLO, that was not reached; "
            "below 0 where a policy did better.</p>",
            _matrix(points, lambda point, field=field: f"<td>{point.words(field, '.1%')}</td>"),
        ]
    return parts


def _facts(scenario: Mapping[str, Any], seeds: Sequence[int]) -> str:
    server, drafter = scenario["server"], scenario["drafter"]
    workload = scenario["workload"]
    facts = [
        f"{server['max_num_seqs']} sequences, {server['max_num_batched_tokens']} tokens a step, "
        f"{server['kv_cache_tokens']} tokens of KV cache, tokens leave {server['emit'].replace('_', ' ')}",
        f"{drafter['kind']} drafter, K ≤ {drafter['max_draft']}",
        f"step times from {scenario['latency']['source']}",
        f"{workload['requests'] or 'all'} requests, {workload['arrivals']['process']} arrivals",
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}",
    ]
    return " · ".join(facts)


def _slo_words(limits: Mapping[str, float]) -> str:
    if not limits:
        return "The scenario has no SLO. P99 TTFT and P99 TPOT, ms, by requests a second:"
    said = " and ".join(f"{LIMITS[field]} &lt; {limit:g} ms" for field, limit in limits.items())
    return f"Met where {said} and nothing failed. Under each verdict P99 TTFT and P99 TPOT, ms; by requests a second:"


def _slo_cell(point: Replications, limits: Mapping[str, float]) -> str:
    share = point.slo_met_share
    kind = "" if share is None else " class='met'" if share == 1.0 else " class='missed'"
    hover = [
        *(f"{said} {point.words(field, '.1f')} ms" for field, said in LIMITS.items()),
        f"{point.mean('completed'):.0f} completed, {point.mean('failed'):.0f} failed",
    ]
    figures_line = f"{point.mean('p99_ttft_ms'):.0f} · {point.mean('p99_tpot_ms'):.1f}"
    verdict = escape(point.verdict) if limits else ""
    return f"<td{kind} title='{escape('; '.join(hover))}'>{verdict}<small>{figures_line}</small></td>"


def _timelines(points: Sequence[Replications]) -> list[str]:
    """A picture for each load."""
    shown: list[str] = []
    for place, load in enumerate(dict.fromkeys(point.load_name for point in points)):
        picture = timeline([point for point in points if point.load_name == load])
        if picture is not None:
            shown.append(details(load, picture, place < OPEN_TIMELINES))
    return shown


def _matrix(points: Sequence[Replications], cell: Callable[[Replications], str]) -> str:
    """A table of policies by loads; `cell` gives the HTML of one."""
    loads = list(dict.fromkeys(point.load for point in points))
    lines: list[str] = []
    for policy in dict.fromkeys(point.policy for point in points):
        own = {point.load: point for point in points if point.policy == policy}
        cells = "".join(cell(own[load]) if load in own else "<td>–</td>" for load in loads)
        lines.append(f"<tr{_mark(policy)}><td>{escape(policy)}</td>{cells}</tr>")
    return _table(("policy", *loads), lines)


def _figures_table(points: Sequence[Replications]) -> str:
    lines = [
        f"<tr{_mark(point.policy)}><td>{escape(point.label)}</td><td>{escape(point.load)}</td>"
        + "".join(f"<td>{point.words(field, form)}</td>" for _, field, form in COLUMNS)
        + "</tr>"
        for point in points
    ]
    return _table(("policy", "requests/s", *(name for name, _, _ in COLUMNS)), lines)


def _table(columns: Sequence[str], lines: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _mark(policy: str) -> str:
    return " class='adaptive'" if policy == "adaptive" else ""
