"""Reads the traces that a user names, and reports their broken lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from turbospec.cli.console import stderr
from turbospec.errors import UserError
from turbospec.observability.trace import TraceStep, read_trace

SHOWN_BROKEN_LINES = 5


def steps_of(files: Sequence[Path], broken: list[str]) -> Iterator[TraceStep]:
    """The steps of all files. Lines that are not a step are added to `broken` and reported on stderr at the end.

    Raises:
        UserError: a file cannot be read, or no file contains a step.
    """
    steps = 0
    for file in files:
        for step in read_trace(file, lambda line, why, file=file: broken.append(f"{file}:{line}: {why}")):
            steps += 1
            yield step
    if not steps:
        why = broken[0] if broken else f"{files[0]}: empty"
        raise UserError(f"no step of a trace ({why}); write a trace with `turbospec generate --trace FILE`")
    for line in broken[:SHOWN_BROKEN_LINES]:
        stderr.print(f"skipped: {line}", soft_wrap=True)
    if broken:
        stderr.print(f"broken lines skipped: {len(broken)}")
