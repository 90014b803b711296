"""Tables of measured runs: a CSV with one run per line, or results of `vllm bench serve --save-result`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbospec.errors import UserError
from turbospec.files.reading import parse_json, read_text
from turbospec.files.suggestions import nearest
from turbospec_sim.limits import LARGEST, SMALLEST
from turbospec_sim.workload.files import csv_rows, parsed_lines, shown

WHAT = "file of measurements"
_STATISTICS = ("mean", "median", "p50", "p95", "p99")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
FIGURES = (
    *(f"{statistic}_{latency}_ms" for statistic in _STATISTICS for latency in _LATENCIES),
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "max_concurrent_requests",
)
"""Figures that can be compared: those of a simulated run, by the names of `vllm bench serve`."""

USUAL = (
    "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "output_throughput", "max_concurrent_requests",
)  # fmt: skip
"""Figures of a JSON result that are compared by default."""

ALIASES = {
    "rate_rps": "request_rate",
    "output_tok_s": "output_throughput",
    "max_concurrent": "max_concurrent_requests",
} | {f"{latency}_{statistic}_ms": f"{statistic}_{latency}_ms" for statistic in _STATISTICS for latency in _LATENCIES}
"""Alternative names of columns."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured run."""

    run: str
    """Its name in the table; the file's name, for a JSON result without one."""
    rate: float | None
    """Requests/s; None for a closed loop."""
    policy: str | None
    """Policy of the simulated run that it is compared with; None: the scenario's own."""
    figures: dict[str, float]
    """By the names of `FIGURES`."""
    concurrency: float | None = None
    """Most requests at a time, where the run says so (`max_concurrency`)."""
    requests: float | None = None
    """Requests that were sent, where the run says so (`num_prompts`)."""


def read_measurements(path: Path, figures: Sequence[str] = ()) -> list[Measurement]:
    """Read a table of measurements.

    Args:
        path: a `.csv` with the columns `run`, `request_rate` (or `rate_rps`) for open loops, optionally `policy`, and
            any of `FIGURES` (also as `ttft_p99_ms` for `p99_ttft_ms`, and so on); else JSON that `vllm bench serve`
            saved or appended, or rows of `turbospec simulate`.
        figures: the figures to read; empty: all of a CSV, `USUAL` of JSON.

    Raises:
        UserError: the file cannot be read or is empty, a column is missing, or a figure is not a number above 0.
    """
    for name in figures:
        if name not in FIGURES:
            raise UserError(f"--figure {name}: not a simulated figure; {nearest(name, FIGURES)}")
    if path.suffix == ".csv":
        wanted, run = FIGURES, None
        rows = [(f"{path}:{line}", fields) for line, fields in csv_rows(path, read_text(path, WHAT))]
    else:
        wanted, run = USUAL, path.stem
        rows = [*_results(path)]
    if not rows:
        raise UserError(f"{path}: no measured run in it")
    return [_measurement(where, fields, figures or wanted, run) for where, fields in rows]


def _results(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Locations and fields of a file's results: one, a list, rows of `turbospec simulate`, or JSON lines."""
    text = read_text(path, WHAT)
    try:
        document = parse_json(text)
    except ValueError:
        documents = [(f"{path}:{line}", value) for line, value in parsed_lines(path, text)]
    else:
        if isinstance(document, dict) and "rows" in document:
            document = document["rows"]
        documents = [(str(path), value) for value in (document if isinstance(document, list) else [document])]
    for where, value in documents:
        if not isinstance(value, dict):
            raise UserError(f"{where}: not a result of `vllm bench serve`, which is a JSON object")
        yield where, value


def _measurement(where: str, fields: dict[str, Any], wanted: Sequence[str], run: str | None) -> Measurement:
    named = {ALIASES.get(name, name): value for name, value in fields.items()}
    run = named.get("run") or named.get("scenario") or run
    if run is None:
        raise UserError(f"{where}: column `run` is missing; it names the measured run")
    policy = named.get("policy")
    for name, value in (("run", run), ("policy", policy)):
        if not isinstance(value, str | None):
            raise UserError(f"{where}: `{name}` must be a name (got {shown(value)})")
    found = {name: _number(where, name, named[name]) for name in wanted if named.get(name) is not None}
    if not found:
        raise UserError(f"{where}: no figure that can be compared; known: {', '.join(wanted)}")
    rate = named.get("request_rate")
    open_loop = rate is not None and str(rate) != "inf"
    concurrency, requests = named.get("max_concurrency"), named.get("num_prompts")
    return Measurement(
        run,
        _number(where, "request_rate", rate) if open_loop else None,
        policy,
        found,
        None if concurrency is None else _number(where, "max_concurrency", concurrency),
        None if requests is None else _number(where, "num_prompts", requests),
    )


def _number(where: str, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not SMALLEST <= number <= LARGEST:
        raise UserError(
            f"{where}: `{name}` must be a number above 0, from {SMALLEST:g} to {LARGEST:g} (got {shown(value)})"
        )
    return number
