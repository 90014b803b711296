"""`turbospec bench targets`: whether a finished run meets the project's development targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turbospec.cli.bench_output import show_targets


def bench_targets(
    results: Annotated[Path, typer.Argument(help="What `turbospec bench --json` or `bench vllm --json` wrote.")],
) -> None:
    """Judge a finished run by the project's development targets, without measuring anything.

    Exit status: 0, or 1 if a target is missed beyond noise. A target that the results do not cover is not judged.
    """
    raise typer.Exit(judge_file(results))


def judge_file(path: Path) -> int:
    """Say how a results file meets the targets, by its rounded figures; the exit status."""
    from turbospec_bench import targets
    from turbospec_bench.results import Results
    from turbospec_bench.vllm import targets as vllm_targets

    rows = Results.load(path).rows
    in_vllm = all(row["emit"] is None for row in rows)
    return show_targets((vllm_targets if in_vllm else targets).judge(rows))
