"""Tables of measured runs: a CSV with one run a line, or what `vllm bench serve --save-result` wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbospec.errors import UserError
from turbospec.files.suggestions import nearest
from turbospec_sim.workload.files import csv_rows, json_lines

_STATISTICS = ("mean", "median", "p50", "p95", "p99")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
FIGURES = (
    *(f"{statistic}_{latency}_ms" for statistic in _STATISTICS for latency in _LATENCIES),
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "max_concurrent_requests",
)
"""What can be compared: figures of a simulated run, which has the names of `vllm bench serve`."""

USUAL = (
    "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "output_throughput", "max_concurrent_requests",
)  # fmt: skip
"""Of the many figures that a JSON result has, those that are compared unless others are asked for."""

ALIASES = {
    "rate_rps": "request_rate",
    "output_tok_s": "output_throughput",
    "max_concurrent": "max_concurrent_requests",
} | {f"{latency}_{statistic}_ms": f"{statistic}_{latency}_ms" for statistic in _STATISTICS for latency in _LATENCIES}
"""Other names that columns go by."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured run."""

    run: str
    """The name that its table gives it; the file's, for a JSON result without one."""
    rate: float | None
    """Requests a second; None for a closed loop."""
    policy: str | None
    """Of the simulated run that it is compared with; None for the scenario's own."""
    figures: dict[str, float]
    """By the names of `FIGURES`."""


def read_measurements(path: Path, figures: Sequence[str] = ()) -> list[Measurement]:
    """Read a table of measurements.

    Args:
        path: `.csv`, with the columns `run`, `request_rate` (or `rate_rps`) for open loops, `policy` where runs differ
            by it, and any of `FIGURES` (or `ttft_p99_ms` for `p99_ttft_ms`, and so on); otherwise JSON as `vllm bench
            serve` saves and appends it, or rows of `turbospec simulate`.
        figures: those to read; none: all of a CSV, `USUAL` of JSON.

    Raises:
        UserError: the file cannot be read or is empty, a column is missing, or a figure is not a number above 0.
    """
    for name in figures:
        if name not in FIGURES:
            raise UserError(f"--figure {name}: not a figure that is simulated; {nearest(name, FIGURES)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file of measurements")
    if path.suffix == ".csv":
        wanted, run = FIGURES, None
        rows = [(f"{path}:{line}", fields) for line, fields in csv_rows(path)]
    else:
        wanted, run = USUAL, path.stem
        rows = [*_results(path)]
    if not rows:
        raise UserError(f"{path}: no measured run in it")
    return [_measurement(where, fields, figures or wanted, run) for where, fields in rows]


def _results(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Places and fields of a file's results: one, a list, rows of ours, or one a line."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        documents = [(f"{path}:{line}", value) for line, value in json_lines(path)]
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
        raise UserError(f"{where}: column `run` is missing; name the measured run there")
    found = {name: _number(where, name, named[name]) for name in wanted if named.get(name) is not None}
    if not found:
        raise UserError(f"{where}: none of the figures that are compared is there; known: {', '.join(wanted)}")
    rate = named.get("request_rate")
    open_loop = rate is not None and str(rate) != "inf"
    return Measurement(
        str(run), _number(where, "request_rate", rate) if open_loop else None, named.get("policy"), found
    )


def _number(where: str, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 < number < math.inf:
        raise UserError(f"{where}: `{name}` must be a number above 0 (got {value!r})")
    return number
