"""`turbospec trace`: what a decision trace amounts to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from turbospec.cli.console import print_json, stderr, stdout, table
from turbospec.errors import UserError
from turbospec.telemetry.summary import Summary
from turbospec.telemetry.trace import read_trace

SHOWN_BROKEN_LINES = 5
SHOWN_REASONS = 10


def trace(
    files: Annotated[list[Path], typer.Argument(help="Traces; a rotated one counts with its backups if named too.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Summarise a decision trace: draft lengths, acceptance, predicted against measured time, reasons."""
    summary = Summary()
    broken: list[str] = []
    for file in files:
        for step in read_trace(file, lambda line, why, file=file: broken.append(f"{file}:{line}: {why}")):
            summary.add(step)
    if not summary.steps:
        why = broken[0] if broken else f"{files[0]}: empty"
        raise UserError(f"no step of a trace ({why}); write one with `turbospec generate --trace FILE`")
    for line in broken[:SHOWN_BROKEN_LINES]:
        stderr.print(f"skipped {line}", markup=False, soft_wrap=True)
    if broken:
        stderr.print(f"broken lines skipped: {len(broken)}")
    if as_json:
        print_json(summary.document() | {"broken_lines": len(broken)})
    else:
        _show(summary)


def _show(summary: Summary) -> None:
    """Print the tables."""
    _show_totals(summary)
    _show_positions(summary)
    shown = summary.reasons.most_common(SHOWN_REASONS)
    reasons = table(f"Reasons ({len(shown)} of {len(summary.reasons)})", "reason", "steps")
    for reason, times in shown:
        reasons.add_row(reason, str(times))
    stdout.print(reasons)


def _show_totals(summary: Summary) -> None:
    totals = table("Totals", "", "")
    step = summary.seconds["step"]
    errors = summary.prediction_errors()
    totals.add_row("steps", f"{summary.steps:,}")
    totals.add_row("requests", f"{len(summary.requests):,}")
    totals.add_row("tokens emitted", f"{summary.emitted_tokens:,}")
    totals.add_row("tokens drafted", f"{summary.drafted_tokens:,}")
    totals.add_row("tokens accepted", f"{summary.accepted_tokens:,}")
    totals.add_row("mean K", f"{summary.mean_draft_length:.2f}")
    totals.add_row("accepted length", f"{summary.accepted_length:.2f}")
    totals.add_row("time in steps", f"{step:.2f} s")
    for part in ("draft", "verify", "controller"):
        totals.add_row(f"  in {part}", f"{summary.seconds[part] / step:.1%}" if step else "–")
    if len(errors):
        totals.add_row("predicted step time, median error", f"{np.median(np.abs(errors)):.1%}")
        totals.add_row("predicted step time, bias", f"{np.median(errors):+.1%}")
    totals.add_row("probing steps", f"{summary.probes:,}")
    totals.add_row("  of the time", f"{summary.seconds['probe'] / step:.1%}" if step else "–")
    totals.add_row("guard fallbacks", f"{summary.fallbacks:,}")
    stdout.print(totals)


def _show_positions(summary: Summary) -> None:
    """Draft lengths and acceptance side by side; a position is observed only if all before it were accepted."""
    document = summary.document()
    lengths = table("Draft length and acceptance", "K or position", "drafted", "share", "observed", "acceptance")
    total = summary.draft_lengths.total()
    for position in range(max(len(document["acceptance"]), max(summary.draft_lengths, default=0)) + 1):
        drafted = summary.draft_lengths[position]
        seen = 1 <= position <= len(document["acceptance"])
        rate = document["acceptance"][position - 1] if seen else None
        lengths.add_row(
            str(position),
            str(drafted),
            f"{drafted / total:.0%}" if total else "–",
            str(document["observations"][position - 1]) if seen else "",
            "" if rate is None else f"{rate:.0%}",
        )
    stdout.print(lengths)
