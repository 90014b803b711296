"""Held-out text that prompts are cut from, and the size of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from turbospec.errors import UserError
from turbospec.files.reading import parse_json, read_text
from turbospec_bench.configuration import Configuration

TEXT_KINDS = ("code", "prose")
"""Stems of the workload files in a folder."""
MEND = "every line must be a JSON object with a `text`"

PROMPT_TOKENS = (48, 200)
"""Shortest and longest prompt, tokens."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of requests of a run and length of their outputs: enough to measure, short enough for many rounds."""

    requests: int
    output_tokens: int
    """Mean output length; single requests differ from it by up to a quarter."""

    @classmethod
    def of(cls, configuration: Configuration) -> Shape:
        busy = configuration.concurrency or 8
        output_tokens = 72 if busy < 4 else 64 if busy < 16 else 48
        if configuration.workload == "shift":
            return cls(3 * max(2, busy), output_tokens * 3 // 4)
        # Where requests differ, the slowest run alone at the end; with more requests that is a smaller share.
        rounds = 3 if configuration.workload == "mixed" else 2
        return cls(max(4, rounds * busy), output_tokens)


def read_texts(path: Path) -> Sequence[str]:
    """The records of a workload file.

    Raises:
        UserError: the file cannot be read or has no records.
    """
    content = read_text(path, "workload file", hint="name its folder with --workloads")
    texts = [_text(path, number, line) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
    if not texts:
        raise UserError(f"{path}: no records; {MEND}")
    return texts


def _text(path: Path, number: int, line: str) -> str:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UserError(f"{path}:{number}: not a record ({error}); {MEND}") from error
    text = cast("dict[str, Any]", record).get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{path}:{number}: not a record (it has no text); {MEND}")
    return text
