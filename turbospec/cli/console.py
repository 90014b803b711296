"""What the subcommands share on the terminal: results go to stdout, progress and remarks to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table
from rich.text import Text

from turbospec.files.results_file import DIGITS, plain

LOG_WIDTH = 140
"""Columns where stdout is a file or a pipe: wide enough for every table."""
LEAST_SIZE = 10
"""Columns or lines of a terminal."""
LINE_SECONDS = 10.0
"""Between two lines of progress where stderr is a file or a pipe."""


def _forget_unusable_sizes() -> None:
    """Remove sizes of the terminal from the environment that rich fails on, or in which no table fits."""
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name)
        if size is not None and not (re.fullmatch("[0-9]{1,6}", size) and int(size) >= LEAST_SIZE):
            del os.environ[name]


def _width() -> int | None:
    return None if sys.stdout is None or sys.stdout.isatty() or "COLUMNS" in os.environ else LOG_WIDTH  # pyright: ignore[reportUnnecessaryComparison]


_forget_unusable_sizes()
# Text is never markup, because most of it comes from outside: names, reasons, descriptions. `Text` objects have styles.
stdout = Console(highlight=False, markup=False, emoji=False, width=_width())
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)


def progress() -> Progress:
    """Progress on stderr: on a terminal a bar with an ETA, gone when it is done; elsewhere a line every 10 s."""
    if not stderr.is_terminal:
        return ProgressLines()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", markup=False),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
    )


class ProgressLines(Progress):
    """Progress for a log. A thread prints it, so that a long step or a wait for a server shows up too."""

    def __init__(self) -> None:
        super().__init__(console=stderr, disable=True)
        self._over = Event()
        self._printer = Thread(target=self._print, name="progress", daemon=True)

    def start(self) -> None:
        super().start()
        self._printer.start()

    def stop(self) -> None:
        self._over.set()
        self._printer.join()
        super().stop()

    def _print(self) -> None:
        while not self._over.wait(LINE_SECONDS):
            line = "; ".join(_in_words(task) for task in self.tasks if not task.finished)
            with suppress(OSError):  # stderr was closed
                stderr.print(line or "finishing", soft_wrap=True)


def _in_words(task: Task) -> str:
    """Such as `runs: 12 of 45, 0:01:20 elapsed, about 0:03:40 left`."""
    elapsed = task.elapsed or 0.0
    parts = [f"{_time(elapsed)} elapsed"]
    completed, total = task.completed, task.total  # another thread may change them
    if total:
        parts.insert(0, f"{completed:g} of {total:g}")
        if completed:
            parts.append(f"about {_time(elapsed * (total / completed - 1))} left")
    return f"{task.description}: {', '.join(parts)}"


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left")
    return made


def print_json(document: dict[str, Any], digits: int | None = DIGITS) -> None:
    """One JSON document on stdout, and nothing else there; null for numbers that are not finite.

    Args:
        document: to print.
        digits: that numbers are rounded to; None where they are settings.
    """
    sys.stdout.write(json.dumps(plain(document, digits), indent=2, allow_nan=False) + "\n")


def waiting(words: str) -> Status:
    """A spinner on stderr while a `with` block runs, on a terminal only."""
    return stderr.status(Text(words))


def printable(text: str, limit: int = 1000) -> str:
    """One line without control characters, those that colour a terminal included; cut after `limit` characters."""
    line = " ".join(text.split())
    line = "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)
    return line if len(line) <= limit else f"{line[:limit]}…"
