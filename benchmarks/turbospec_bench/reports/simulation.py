"""The report of a sweep: one HTML file without any reference to the network, rendered from the results file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turbospec.files.writing import write_whole
from turbospec.files.yaml_text import yaml_text
from turbospec_bench.reports.page import render_page
from turbospec_bench.reports.simulation_plots import against_load, step_time, timeline
from turbospec_sim.replications import Replications, Row, replications

LIMITS = {"p99_ttft_ms": "P99 TTFT", "p99_tpot_ms": "P99 TPOT"}
BASELINES = {"regret_vs_oracle": "the oracle", "regret_vs_best_static": "the best fixed plans in hindsight"}
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
"""Loads of a scenario whose timelines are open when the page is opened."""


def write_report(path: Path, meta: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the report of a results file's `meta` and `rows`."""
    write_whole(path, render(meta, rows))


def render(meta: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The report as one HTML document: every scenario's SLO, then its pictures and tables."""
    return render_page(
        "simulation.html",
        setting=" · ".join(f"{name}: {value}" for name, value in meta.items() if name != "scenarios"),
        several_seeds=meta["seeds"] > 1,
        columns=("policy", "requests/s", *(name for name, _, _ in COLUMNS)),
        open_timelines=OPEN_TIMELINES,
        scenarios=[_scenario(name, meta["scenarios"][name], points) for name, points in replications(rows).items()],
    )


def _scenario(name: str, scenario: Mapping[str, Any], points: Sequence[Replications]) -> dict[str, Any]:
    limits = {field: limit for field, limit in (scenario["slo"] or {}).items() if limit is not None}
    seeds = sorted({row["seed"] for point in points for row in point.rows})
    loads = list(dict.fromkeys(point.load for point in points))
    return {
        "name": name,
        "description": scenario["description"],
        "facts": _facts(scenario, seeds),
        "document": yaml_text(scenario),
        "slo": _slo_words(limits),
        "loads": ("policy", *loads),
        "verdicts": _by_policy(points, loads, lambda point: _verdict(point, limits)),
        "against_load": against_load(points, limits),
        "figures": [(point.policy, _figures(point)) for point in points],
        "seed": seeds[0],
        "timelines": _timelines(points),
        "step_time": step_time(points),
        "regrets": [
            {
                "baseline": said,
                "lines": _by_policy(points, loads, lambda point, field=field: point.words(field, ".1%")),
            }
            for field, said in BASELINES.items()
            if points[0].rows[0][field] is not None
        ],
    }


def _facts(scenario: Mapping[str, Any], seeds: Sequence[int]) -> str:
    server, drafter = scenario["server"], scenario["drafter"]
    workload = scenario["workload"]
    facts = [
        f"{server['max_num_seqs']} sequences, {server['max_num_batched_tokens']} tokens per step, "
        f"{server['kv_cache_tokens']} tokens of KV cache, tokens are emitted {server['emit'].replace('_', ' ')}",
        f"{drafter['kind']} drafter, K ≤ {drafter['max_draft']}",
        f"step times from {scenario['latency']['source']}",
        f"{workload['requests'] or 'all'} requests, {workload['arrivals']['process']} arrivals",
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}",
    ]
    return " · ".join(facts)


def _slo_words(limits: Mapping[str, float]) -> str:
    if not limits:
        return "The scenario has no SLO. P99 TTFT and P99 TPOT, ms, by requests/s:"
    said = " and ".join(f"{LIMITS[field]} < {limit:g} ms" for field, limit in limits.items())
    return f"Met where {said} and nothing failed. Below each verdict P99 TTFT and P99 TPOT, ms; by requests/s:"


def _verdict(point: Replications, limits: Mapping[str, float]) -> dict[str, str]:
    """What a policy's place in the table of the SLO says at one load."""
    share = point.slo_met_share
    hover = [
        *(f"{said} {point.words(field, '.1f')} ms" for field, said in LIMITS.items()),
        f"{point.mean('completed'):.0f} completed, {point.mean('failed'):.0f} failed",
    ]
    return {
        "kind": "" if share is None else "met" if share == 1.0 else "missed",
        "hover": "; ".join(hover),
        "verdict": point.verdict if limits else "",
        "figures": f"{point.mean('p99_ttft_ms'):.0f} · {point.mean('p99_tpot_ms'):.1f}",
    }


def _timelines(points: Sequence[Replications]) -> list[tuple[str, str]]:
    """A load and its picture, for each load that has one."""
    shown: list[tuple[str, str]] = []
    for load in dict.fromkeys(point.load_name for point in points):
        picture = timeline([point for point in points if point.load_name == load])
        if picture is not None:
            shown.append((load, picture))
    return shown


def _by_policy(
    points: Sequence[Replications], loads: Sequence[str], value: Callable[[Replications], Any]
) -> list[tuple[str, list[Any]]]:
    """A line for each policy, with the value at each load; None where it was not simulated."""
    lines: list[tuple[str, list[Any]]] = []
    for policy in dict.fromkeys(point.policy for point in points):
        own = {point.load: point for point in points if point.policy == policy}
        lines.append((policy, [value(own[load]) if load in own else None for load in loads]))
    return lines


def _figures(point: Replications) -> list[str]:
    return [point.label, point.load, *(point.words(field, form) for _, field, form in COLUMNS)]
