"""`turbospec doctor`: whether speculation pays on a server, and if not, why."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from turbospec.cli.console import print_json, printable, stdout, table, waiting
from turbospec.doctor.counts import DraftCounts, read_bench, read_server
from turbospec.doctor.diagnosis import Diagnosis, StepCost, compare, diagnose
from turbospec.errors import UserError

MAX_COST = 1000.0
DRAFT_COST, VERIFY_COST = 0.08, 0.02
"""Assumed costs: an EAGLE head with a target of some tens of layers, and a batch that is not full."""

MARKS = {"good": ("ok", "green"), "warning": ("warning", "yellow"), "bad": ("bad", "red")}


def doctor(
    url: Annotated[
        str | None, typer.Option(help="Address of a running vLLM server, such as http://127.0.0.1:8000.")
    ] = None,
    bench: Annotated[
        Path | None, typer.Option(help="Result of `vllm bench serve --save-result`, with speculation.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Result of the same run without speculation; measures the gain of --bench.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(help="Seconds to watch the server for; 0: use all counts since its start.", min=0.0, max=3600.0),
    ] = 0.0,
    draft_cost: Annotated[
        float,
        typer.Option(help="Time to draft one token, as a fraction of a step without drafts.", min=0.0, max=MAX_COST),
    ] = DRAFT_COST,
    verify_cost: Annotated[
        float,
        typer.Option(
            help="Time to verify one more token, as a fraction of a step without drafts.", min=0.0, max=MAX_COST
        ),
    ] = VERIFY_COST,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show up to which position drafts are accepted on a vLLM server, how much longer a step may take, and what to
    check; with --baseline, whether speculation pays.
    """
    if (url is None) == (bench is None):
        raise UserError("give either --url (a running server) or --bench (a result of `vllm bench serve`)")
    if baseline is not None and bench is None:
        raise UserError("--baseline needs --bench, the result that it is compared with")
    if seconds and bench is not None:
        raise UserError("--seconds needs --url, the server to watch")
    for option, value in (("--seconds", seconds), ("--draft-cost", draft_cost), ("--verify-cost", verify_cost)):
        if math.isnan(value):  # passes every bound
            raise UserError(f"{option}: nan is no number; give one")
    cost = StepCost(draft_cost, verify_cost)
    if url is not None:
        diagnosis = diagnose(_watch(url, seconds), cost)
    else:
        assert bench is not None
        run = read_bench(bench)
        diagnosis = diagnose(run.counts, cost)
        if baseline is not None:
            diagnosis.findings += compare(run, read_bench(baseline))
    if as_json:
        print_json(_document(diagnosis, cost))
    else:
        _show(diagnosis, cost)


def _watch(url: str, seconds: float) -> DraftCounts:
    before = read_server(url)
    if seconds == 0.0:
        return before
    with waiting(f"Watching the server for {seconds:g} s"):
        time.sleep(seconds)
    return read_server(url).since(before)


def _document(diagnosis: Diagnosis, cost: StepCost) -> dict[str, object]:
    return {
        "acceptance": [None if math.isnan(rate) else round(rate, 4) for rate in diagnosis.conditional.tolist()],
        "tokens_per_step": [round(tokens, 4) for tokens in diagnosis.tokens_per_step.tolist()],
        "speedup": [round(speedup, 4) for speedup in diagnosis.speedup.tolist()],
        "best_length": diagnosis.best_length,
        "assumed": {"draft_cost": cost.draft_token, "verify_cost": cost.verify_token},
        "findings": [
            {"severity": each.severity, "text": each.text, "checks": list(each.checks)} for each in diagnosis.findings
        ],
    }


def _show(diagnosis: Diagnosis, cost: StepCost) -> None:
    if len(diagnosis.conditional) and not len(diagnosis.tokens_per_step):
        positions = table("Drafts of varying length", "position", "conditional acceptance")
        for position, rate in enumerate(diagnosis.conditional.tolist(), start=1):
            positions.add_row(str(position), _percent(rate))
        stdout.print(positions)
    elif len(diagnosis.conditional):
        lengths = table(
            "Draft lengths",
            "K",
            "conditional acceptance",
            "tokens per step",
            "pays below",
            "speedup at the assumed cost",
        )
        for length, tokens in enumerate(diagnosis.tokens_per_step.tolist()):
            rate = _percent(diagnosis.conditional[length - 1]) if length else ""
            pays = f"{tokens:.2f} × a no-draft step" if length else ""
            lengths.add_row(str(length), rate, f"{tokens:.2f}", pays, f"{diagnosis.speedup[length]:.2f} ×")
        stdout.print(lengths)
        stdout.print(
            f"Assumed: drafting a token takes {cost.draft_token:.2f} of a step without drafts, verifying one "
            f"{cost.verify_token:.2f}. Set both with --draft-cost and --verify-cost.\n"
        )
    for finding in diagnosis.findings:
        stdout.print(Text.assemble(MARKS[finding.severity], f"  {printable(finding.text)}"), soft_wrap=True)
        for number, check in enumerate(finding.checks, start=1):
            stdout.print(f"      {number}. {check}", soft_wrap=True)


def _percent(rate: float) -> str:
    return "–" if math.isnan(rate) else f"{rate:.1%}"
