"""Options that subcommands share."""

from __future__ import annotations

from typing import Annotated

import typer

Dtype = Annotated[str, typer.Option(help="Type of the weights: bfloat16, float16 or float32.")]
DEFAULT_DTYPE = "bfloat16"

MAX_SEED = 2**63 - 1
