"""`turbospec trace`: the summary of a decision trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from turbospec.cli.console import print_json, printable, stdout, table
from turbospec.cli.drafted_text import NAMES
from turbospec.cli.trace_files import BrokenLines, steps_of
from turbospec.observability.summary import Summary

SHOWN_REASONS = 10


def trace(
    files: Annotated[
        list[Path], typer.Argument(help="Traces. Name the backups of a rotated trace too (trace.jsonl.1, …).")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Summarise a decision trace: draft lengths, acceptance rates, predicted and measured step times, reasons."""
    summary = Summary()
    broken = BrokenLines()
    for step in steps_of(files, broken):
        summary.add(step)
    if as_json:
        print_json(summary.document() | {"broken_lines": broken.count})
    else:
        _show(summary)


def _show(summary: Summary) -> None:
    """Print the tables."""
    _show_totals(summary)
    if summary.sources:
        _show_sources(summary)
    _show_positions(summary)
    shown = summary.reasons.most_common(SHOWN_REASONS)
    reasons = table(f"Reasons ({len(shown)} of {len(summary.reasons)})", "reason", "steps")
    for reason, times in shown:
        reasons.add_row(printable(reason), str(times))
    stdout.print(reasons)


def _show_totals(summary: Summary) -> None:
    totals = table("Totals", "", "")
    step = summary.seconds["step"]
    errors = summary.prediction_errors()
    totals.add_row("steps", f"{summary.steps:,}")
    if summary.reused_plan_steps:
        totals.add_row("  of these reusing a plan", f"{summary.reused_plan_steps:,}")
    totals.add_row("requests", f"{len(summary.requests):,}")
    totals.add_row("tokens emitted", f"{summary.emitted_tokens:,}")
    totals.add_row("tokens drafted", f"{summary.drafted_tokens:,}")
    totals.add_row("tokens accepted", f"{summary.accepted_tokens:,}")
    totals.add_row("mean K", f"{summary.mean_draft_length:.2f}")
    totals.add_row("accepted length", f"{summary.accepted_length:.2f}")
    totals.add_row("step time", f"{step:.2f} s")
    for part in ("draft", "verify", "controller"):
        totals.add_row(f"  in {part}", f"{summary.seconds[part] / step:.1%}" if step else "–")
    if len(errors):
        totals.add_row("predicted step time, median error", f"{np.median(np.abs(errors)):.1%}")
        totals.add_row("predicted step time, bias", f"{np.median(errors):+.1%}")
    totals.add_row("probe steps", f"{summary.probes:,}")
    totals.add_row("  share of step time", f"{summary.probe_step_seconds / step:.1%}" if step else "–")
    totals.add_row("guard fallbacks", f"{summary.fallbacks:,}")
    stdout.print(totals)


def _show_sources(summary: Summary) -> None:
    """What the drafter and the look-up drafted."""
    sources = table("Sources", "source", "drafts", "tokens drafted", "tokens accepted", "acceptance", "accepted length")
    for source, counts in summary.sources.items():
        figures = counts.document()
        sources.add_row(
            NAMES[source],
            f"{counts.drafts:,}",
            f"{counts.drafted_tokens:,}",
            f"{counts.accepted_tokens:,}",
            f"{figures['acceptance_rate']:.0%}" if counts.drafted_tokens else "–",
            f"{figures['accepted_length']:.2f}" if counts.drafts else "–",
        )
    stdout.print(sources)


def _show_positions(summary: Summary) -> None:
    """Draft lengths and acceptance rates; a position is observed only if all before it were accepted."""
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
