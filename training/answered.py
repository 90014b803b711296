"""Workload records with an answer that repeats its prompt: ``workloads/edit.jsonl`` and ``workloads/records.jsonl``.

Made from ``workloads/code.jsonl``, the standard library's data files and the target's tokenizer; no randomness but
that of generators seeded with a record's source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from tokenizers import Tokenizer

from training import edits, listings

PROMPT_TOKENS = (100, 280)
"""Fewest and most; with the answer a request fits the benchmark's model length of 384."""
ANSWER_TOKENS = 90
"""At least; the benchmark's longest output."""
PIECE_TOKENS = 185
"""Of a file that is edited, at most."""
LISTING_TOKENS = 270
"""Of a listing that is continued, about."""
LIMIT = 240
"""Records per file at the most."""


@dataclass(frozen=True)
class Answered:
    """One workload record: ``text`` is the whole prompt, ``answer`` its right continuation."""

    id: str
    source: str
    text: str
    answer: str


class Cutter:
    """Cuts texts at line ends by their number of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def tokens(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def prefix(self, lines: list[str], most: int) -> int:
        """Number of leading lines with at most so many tokens together."""
        count = 0
        while count < len(lines) and self.tokens("\n".join(lines[: count + 1])) <= most:
            count += 1
        return count

    def answered(self, kind: str, source: str, before: list[str], lines: list[str], start: int) -> Answered | None:
        """A prompt of the lines before and the first ``start`` lines, answered by those that follow.

        The prompt ends before a line break: tokens join a break and the indentation after it.

        Returns:
            ``None`` where prompt or answer would be too short or too long.
        """
        prompt = "\n".join([*before, *lines[:start]])
        if not PROMPT_TOKENS[0] <= self.tokens(prompt) <= PROMPT_TOKENS[1]:
            return None
        for end in range(start + 1, len(lines) + 1):
            answer = "\n" + "\n".join(lines[start:end])
            if self.tokens(answer) >= ANSWER_TOKENS:
                digest = hashlib.sha256((prompt + answer).encode()).hexdigest()[:10]
                return Answered(f"{kind}-{digest}", source, prompt, answer)
        return None


def edit_records(excerpts: Iterable[tuple[str, str]], cutter: Cutter) -> list[Answered]:
    """Each excerpt, given as source and text, once as it is and once changed; the second is the answer's beginning."""
    found: list[Answered | None] = []
    for source, text in excerpts:
        lines = text.splitlines()
        piece = lines[: cutter.prefix(lines, PIECE_TOKENS)]
        start = len(piece)
        while start and cutter.tokens("\n" + "\n".join(piece[start:])) < ANSWER_TOKENS * 1.1:
            start -= 1
        changed = edits.changed(piece, start, source)
        if start and changed is not None:
            found.append(cutter.answered("edit", source, [*piece, ""], changed, start))
    return _ordered(found)


def listing_records(sources: Iterable[listings.Listing], cutter: Cutter) -> list[Answered]:
    """Consecutive pieces of listings: the first lines of each are the prompt, the next ones its answer."""
    found: list[Answered | None] = []
    for listing in sources:
        lines, taken = list(listing.lines), 0
        while lines and taken < listing.most:
            start = cutter.prefix(lines, LISTING_TOKENS)
            record = cutter.answered("records", listing.source, [], lines, start)
            taken += record is not None
            found.append(record)
            lines = lines[1 if record is None else start + record.answer.count("\n") :]
    return _ordered(found)


def _ordered(found: Iterable[Answered | None]) -> list[Answered]:
    """At most ``LIMIT`` records with distinct prompts, ordered by id, which is a hash."""
    by_prompt = {record.text: record for record in found if record is not None}
    return sorted(by_prompt.values(), key=lambda record: record.id)[:LIMIT]


def main(
    out: Annotated[Path, typer.Option(help="Folder of code.jsonl, for the two .jsonl files.")] = Path("workloads"),
    target: Annotated[Path, typer.Option(help="Folder of the tokenizer.")] = Path("models/target"),
) -> None:
    """Write the workloads whose answers repeat their prompts."""
    cutter = Cutter(Tokenizer.from_file(str(target / "tokenizer.json")))
    with (out / "code.jsonl").open(encoding="utf-8") as lines:
        excerpts = [(record["source"], record["text"]) for record in map(json.loads, lines)]
    written = {
        "edit": edit_records(excerpts, cutter),
        "records": listing_records(listings.of_the_standard_library(), cutter),
    }
    for name, records in written.items():
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(vars(record), ensure_ascii=False) + "\n" for record in records)
        typer.echo(f"{name}: {len(records)} records")


if __name__ == "__main__":
    typer.run(main)
