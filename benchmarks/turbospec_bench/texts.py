"""Held-out text that prompts are cut from, and the size of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from turbospec.errors import UserError
from turbospec.files.reading import parse_json, read_text
from turbospec_bench.configuration import Configuration

TEXT_KINDS = ("code", "prose")
"""Stems of the workload files whose beginnings are prompts."""
ANSWERED_KINDS = ("edit", "records")
"""Stems of the workload files with whole prompts and their right answers, and the workloads of these names."""
MEND = "every line must be a JSON object with a `text`"

PROMPT_TOKENS = (48, 200)
"""Shortest and longest prompt, tokens."""
ANSWERED_PROMPT_TOKENS = 280
"""Longest prompt that has an answer, tokens; of a longer one the end is kept."""


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
        # Where requests differ, the slowest ones run alone at the end. More requests make that part of the run smaller.
        rounds = 3 if configuration.workload == "mixed" else 2
        return cls(max(4, rounds * busy), output_tokens)


def answered_kinds(configurations: Iterable[Configuration]) -> list[str]:
    """The workloads with answers among those of the configurations."""
    workloads = {configuration.workload for configuration in configurations}
    return [kind for kind in ANSWERED_KINDS if kind in workloads]


def read_texts(path: Path) -> Sequence[str]:
    """The records of a workload file.

    Raises:
        UserError: the file cannot be read or has no records.
    """
    return [text for (text,) in _read(path, ("text",), MEND)]


def read_answered(path: Path) -> Sequence[tuple[str, str]]:
    """Prompt and answer of the records of a workload file.

    Raises:
        UserError: the file cannot be read or has no records.
    """
    return [(text, answer) for text, answer in _read(path, ("text", "answer"), f"{MEND} and an `answer`")]


def _read(path: Path, keys: Sequence[str], mend: str) -> Sequence[Sequence[str]]:
    content = read_text(path, "workload file", hint="name its folder with --workloads")
    lines = enumerate(content.split("\n"), start=1)
    records = [_record(f"{path}:{number}", line, keys, mend) for number, line in lines if line.strip()]
    if not records:
        raise UserError(f"{path}: no records; {mend}")
    return records


def _record(place: str, line: str, keys: Sequence[str], mend: str) -> Sequence[str]:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise UserError(f"{place}: not a record ({error}); {mend}") from error
    values = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    for key in keys:
        if not isinstance(value := values.get(key), str) or not value.strip():
            raise UserError(f"{place}: not a record (it has no {key}); {mend}")
    return [values[key] for key in keys]
