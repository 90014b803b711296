"""Cut workload excerpts out of held-out documents: ``workloads/code.jsonl`` and ``workloads/prose.jsonl``."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from training.corpus import CACHE, Document, Kind, load

MIN_CHARS, MAX_CHARS = 1000, 2500
PER_FILE = {"code": 6, "prose": 8}
PER_PACKAGE = 80
DUPLICATE_LINES = 4
MAX_DUPLICATE_SHARE = 0.1
BOUNDARY = re.compile(r"(?m)^(?: {4})?(?:async def|def|class) ")


@dataclass(frozen=True)
class Excerpt:
    """One workload record."""

    id: str
    source: str
    text: str


def line_windows(text: str) -> Iterator[int]:
    """Hash of every run of ``DUPLICATE_LINES`` consecutive non-blank lines, indentation ignored."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for start in range(len(lines) - DUPLICATE_LINES + 1):
        yield hash(tuple(lines[start : start + DUPLICATE_LINES]))


def is_near_duplicate(text: str, known: set[int]) -> bool:
    """Whether more than a tenth of the text's line windows occur in training text."""
    windows = list(line_windows(text))
    return sum(window in known for window in windows) > MAX_DUPLICATE_SHARE * max(1, len(windows))


def starts_in(text: str, kind: Kind) -> list[int]:
    """Offsets at which an excerpt may begin: a definition for code, a paragraph for prose."""
    if kind == "code":
        return [match.start() for match in BOUNDARY.finditer(text)]
    return [0, *(match.end() for match in re.finditer(r"\n\n(?=[A-Z])", text))]


def excerpts_of(source: str, text: str, kind: Kind, known: set[int]) -> list[Excerpt]:
    """Non-overlapping excerpts of one file, chosen by a generator seeded with the file's identifier."""
    draw = random.Random(f"{kind}:{source}")
    found: list[Excerpt] = []
    end = -1
    for start in starts_in(text, kind):
        wanted = draw.randint(MIN_CHARS + 200, MAX_CHARS if kind == "code" else 1600)
        piece = text[start : start + wanted]
        piece = piece[: piece.rfind("\n") + 1]
        if start < end or len(piece) < MIN_CHARS or is_near_duplicate(piece, known):
            continue
        end = start + len(piece)
        digest = hashlib.sha256(piece.encode()).hexdigest()[:10]
        found.append(Excerpt(f"{kind}-{digest}", source, piece))
    draw.shuffle(found)
    return found[: PER_FILE[kind]]


def build(kind: Kind, heldout: list[Document], known: set[int]) -> list[Excerpt]:
    """All excerpts of one kind, at most ``PER_PACKAGE`` from a package, ordered by id."""
    by_source: dict[str, list[str]] = defaultdict(list)
    for document in heldout:
        if document.kind == kind:
            by_source[document.source].append(document.text)
    by_package: dict[str, list[Excerpt]] = defaultdict(list)
    for source, texts in sorted(by_source.items()):
        by_package[source.split(":")[0]] += excerpts_of(source, "\n".join(texts), kind, known)
    chosen = [
        excerpt
        for excerpts in by_package.values()
        for excerpt in sorted(excerpts, key=lambda excerpt: excerpt.id)[:PER_PACKAGE]
    ]
    return sorted(chosen, key=lambda excerpt: excerpt.id)


def main(
    out: Annotated[Path, typer.Option(help="Folder for the two .jsonl files.")] = Path("workloads"),
    limit: Annotated[int, typer.Option(help="Records per file at the most.")] = 360,
    cache: Path = CACHE,
) -> None:
    """Write the workload excerpts; excerpts that repeat training text are left out."""
    known = {window for document in load("train", cache) for window in line_windows(document.text)}
    heldout = load("heldout", cache)
    for kind in ("code", "prose"):
        excerpts = build(kind, heldout, known)[:limit]
        with (out / f"{kind}.jsonl").open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(vars(excerpt), ensure_ascii=False) + "\n" for excerpt in excerpts)
        typer.echo(f"{kind}: {len(excerpts)} records, {sum(len(e.text) for e in excerpts) / 1e3:.0f} k characters")


if __name__ == "__main__":
    typer.run(main)
