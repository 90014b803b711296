"""Rows of the benchmark's results as text, for tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turbospec_bench.configuration import Row

COLUMNS = (
    "policy",
    "tokens/s",
    "÷ off [95 %]",
    "TPOT ms",
    "TTFT ms",
    "P99 TTFT ms",
    "K",
    "accepted length",
    "draft time",
    "controller",
)


def policy_name(row: Row) -> str:
    return f"{row['policy']}:after_draft" if row["emit"] == "after_draft" else row["policy"]


def table_line(row: Row) -> list[str]:
    """One value for each of `COLUMNS`: medians over the rounds, and the ratio to off with its interval."""
    ratio = row["ratio_to_off"]["output_throughput"]
    return [
        policy_name(row),
        f"{row['output_throughput']:.0f}",
        f"{ratio['value']:.2f}" + (f" [{ratio['low']:.2f}, {ratio['high']:.2f}]" if row["rounds"] > 1 else ""),
        f"{row['mean_tpot_ms']:.2f}",
        f"{row['mean_ttft_ms']:.1f}",
        f"{row['p99_ttft_ms']:.1f}",
        _optional(row.get("mean_draft_length"), ".2f"),
        _optional(row.get("mean_accepted_length"), ".2f"),
        _optional(row.get("draft_time_share"), ".0%"),
        _optional(row.get("controller_time_share"), ".1%"),
    ]


def disturbance(rows: Sequence[Row]) -> str:
    """Which rounds of a configuration other processes disturbed; empty where none."""
    rounds: Sequence[int] = rows[0].get("disturbed_rounds", ())
    if not rounds:
        return ""
    cores = [row["other_cores"][number - 1] for row in rows for number in rounds if row.get("other_cores")]
    most = max((used for used in cores if used is not None), default=0.0)
    numbers = ", ".join(map(str, rounds))
    which = f"round {numbers} was" if len(rounds) == 1 else f"rounds {numbers} were"
    return f"{which} disturbed: other processes used up to {most:.1f} cores"


def _optional(value: float | None, form: str) -> str:
    return "–" if value is None or math.isnan(value) else format(value, form)
