"""`turbospec doctor`: does speculation pay on this server, and if not, why."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from turbospec.cli.console import print_json, stderr, stdout, table
from turbospec.doctor.counts import DraftCounts, read_bench, read_server
from turbospec.doctor.diagnosis import Diagnosis, StepCost, compare, diagnose
from turbospec.errors import UserError

DRAFT_COST, VERIFY_COST = 0.08, 0.02
"""Assumed where nothing is known: an EAGLE head beside some tens of layers, and a batch that is not full."""

MARKS = {"good": "[green]ok[/]", "warning": "[yellow]look[/]", "bad": "[red]bad[/]"}


def doctor(
    url: Annotated[str | None, typer.Option(help="A running vLLM server, such as http://127.0.0.1:8000.")] = None,
    bench: Annotated[Path | None, typer.Option(help="A result of `vllm bench serve --save-result`.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="The same run without speculation, to measure what --bench gained.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Watch the server for so long; 0: all since it was started.", min=0.0, max=3600.0)
    ] = 0.0,
    draft_cost: Annotated[
        float, typer.Option(help="Time to draft a token, in parts of a step without drafts.", min=0.0)
    ] = DRAFT_COST,
    verify_cost: Annotated[
        float, typer.Option(help="Time to verify one more token, in the same parts.", min=0.0)
    ] = VERIFY_COST,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say in plain words whether speculation pays on a vLLM server, where acceptance dies, and what to check next."""
    if (url is None) == (bench is None):
        raise UserError("give either --url of a running server or --bench, a result of `vllm bench serve`")
    if baseline is not None and bench is None:
        raise UserError("--baseline is compared with --bench; give both")
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
    with stderr.status(f"watching {url} for {seconds:.0f} s"):
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
    if len(diagnosis.conditional):
        lengths = table("Draft lengths", "K", "acceptance", "tokens a step", "pays below", "at the assumed cost")
        for length, tokens in enumerate(diagnosis.tokens_per_step.tolist()):
            rate = _percent(diagnosis.conditional[length - 1]) if length else ""
            pays = f"{tokens:.2f} × a plain step" if length else ""
            lengths.add_row(str(length), rate, f"{tokens:.2f}", pays, f"{diagnosis.speedup[length]:.2f} ×")
        stdout.print(lengths)
        stdout.print(
            f"Assumed: a drafted token takes {cost.draft_token:.2f} of a plain step, a verified one "
            f"{cost.verify_token:.2f}; set them with --draft-cost and --verify-cost.\n"
        )
    for finding in diagnosis.findings:
        stdout.print(f"{MARKS[finding.severity]}  {finding.text}", soft_wrap=True)
        for number, check in enumerate(finding.checks, start=1):
            stdout.print(f"      {number}. {check}", soft_wrap=True, markup=False)


def _percent(rate: float) -> str:
    return "–" if math.isnan(rate) else f"{rate:.1%}"
