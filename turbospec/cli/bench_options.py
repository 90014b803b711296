"""Options that both benchmarks have, in the embedded engine and in vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turbospec.cli.options import MAX_SEED

Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Draws the requests and the order of policies.")]
Models = Annotated[Path, typer.Option(help="Folder of the target and its drafters.")]
Workloads = Annotated[Path, typer.Option(help="Folder of code.jsonl, prose.jsonl and the other workload files.")]
Json = Annotated[
    Path | None,
    typer.Option(help="Results file, written after every round; under runs/ when absent."),
]
Report = Annotated[Path | None, typer.Option(help="HTML report; beside the results when absent.")]
Pictures = Annotated[Path | None, typer.Option(help="Folder for the report's pictures as SVG files.")]
Resume = Annotated[
    Path | None, typer.Option(help="Results of an interrupted run of the same selection, to be completed.")
]
CheckTargets = Annotated[
    bool,
    typer.Option(
        "--check-targets",
        help="For developers: judge the project's targets too. Exit status 1 if one is missed beyond noise.",
    ),
]
