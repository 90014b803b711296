"""Reads the traces that a user names, and reports their broken lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from turbospec.cli.console import printable, stderr
from turbospec.errors import UserError
from turbospec.observability.trace import HOW_TO_WRITE, TraceStep, read_trace

SHOWN_BROKEN_LINES = 5
MAX_BROKEN_LINES = 200_000
"""More are not skipped: the file is something else."""


@dataclass(slots=True)
class BrokenLines:
    """The lines of traces that are not a step."""

    count: int = 0
    first: list[str] = field(default_factory=list[str])
    """Of the first ones, the place and what is wrong."""

    def add(self, file: Path, line: int, why: str) -> None:
        """Count a line.

        Raises:
            UserError: there are more than `MAX_BROKEN_LINES`.
        """
        self.count += 1
        if len(self.first) < SHOWN_BROKEN_LINES:
            self.first.append(f"{file}:{line}: {why}")
        if self.count > MAX_BROKEN_LINES:
            raise UserError(
                f"more than {MAX_BROKEN_LINES} lines are no step of a trace ({self.first[0]}); {HOW_TO_WRITE}"
            )


def steps_of(files: Sequence[Path], broken: BrokenLines) -> Iterator[TraceStep]:
    """The steps of all files, backups before the file that they are of. Lines that are not a step are added to `broken`
    and reported on stderr at the end.

    Raises:
        UserError: a file cannot be read or is named twice, or no file contains a step.
    """
    steps, places = 0, [file.resolve() for file in files]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UserError(f"{files[number]}: named twice; its steps would count twice")
    newest_first = _oldest_first(files)[::-1]
    # Opened before one is read: a server that still writes them may make a backup meanwhile, which moves each.
    traces = [read_trace(file, lambda line, why, file=file: broken.add(file, line, why)) for file in newest_first]
    for step in chain.from_iterable(traces[::-1]):
        steps += 1
        yield step
    if not steps:
        why = broken.first[0] if broken.count else f"{files[0]}: empty"
        raise UserError(f"no step of a trace ({why}); {HOW_TO_WRITE}")
    for line in broken.first:
        stderr.print(printable(f"skipped: {line}"), soft_wrap=True)
    if broken.count:
        stderr.print(f"broken lines skipped: {broken.count}")


def _oldest_first(files: Sequence[Path]) -> list[Path]:
    """The files, each trace's backups (`trace.jsonl.2`, `trace.jsonl.1`) before it."""
    traces: dict[Path, list[tuple[int, Path]]] = {}
    for file in files:
        number = file.suffix.removeprefix(".")
        is_backup = number.isdecimal()
        traces.setdefault(file.with_suffix("") if is_backup else file, []).append(
            (int(number) if is_backup else 0, file)
        )
    return [file for parts in traces.values() for _, file in sorted(parts, reverse=True)]
