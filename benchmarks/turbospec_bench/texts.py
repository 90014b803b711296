"""Held-out text that prompts are cut from, and the size of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration

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
    try:
        with path.open(encoding="utf-8") as lines:
            texts = [str(json.loads(line)["text"]) for line in lines]
    except OSError as error:
        raise UserError(
            f"{path}: cannot read the workload ({error.strerror}); name its folder with --workloads"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a workload ({error}); every line must be JSON with a `text`") from error
    if not texts:
        raise UserError(f"{path}: no records; every line must be JSON with a `text`")
    return texts
