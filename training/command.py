"""How a training command is run."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from turbospec.errors import UserError


def run_command(main: Callable[..., None]) -> None:
    """Run a command with the arguments of the process; a user's mistake is one line, with exit code 2."""
    try:
        typer.run(main)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
