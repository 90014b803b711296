"""Options that subcommands share."""

from __future__ import annotations

from typing import Annotated

import typer

Dtype = Annotated[str, typer.Option(help="Type of the weights: bfloat16, float16 or float32.")]
DEFAULT_DTYPE = "bfloat16"

Drafter = Annotated[
    str,
    typer.Option(
        help='Checkpoint folder of a draft model or of an EAGLE-3, P-EAGLE or DFlash head; or "ngram" or "suffix".'
    ),
]
DEFAULT_DRAFTER = "models/drafter"

Lookup = Annotated[
    str | None, typer.Option(help="A second source of drafts, beside a drafter that is a model: ngram or suffix.")
]

MAX_SEED = 2**63 - 1
