"""What the subcommands share on the terminal: results go to stdout, progress and remarks to stderr."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

LOG_WIDTH = 140
"""Columns where stdout is a file or a pipe: wide enough for every table."""

stdout = Console(highlight=False, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else LOG_WIDTH)
stderr = Console(stderr=True, highlight=False)


def progress() -> Progress:
    """A progress bar with an ETA, gone when it is done; silent where stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left")
    return made


def print_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout, and nothing else there."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")
