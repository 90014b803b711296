"""Build the training corpus: read, filter, de-duplicate, split and write documents.

The result depends only on the installed package versions. Whole files are held out by a hash of their
identifier (``numpy:linalg/_linalg.py``); the documentation strings of a held-out file are held out with it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Literal

import typer
from rich.progress import track

from training.sources import SOURCES, Source

CACHE = Path(".cache/pair")
HELD_OUT_PER_MILLE = 40
MIN_FILE_BYTES, MAX_FILE_BYTES = 600, 150_000
MAX_LINE_CHARS = 400
MAX_DIGIT_SHARE = 0.12
MIN_DOCSTRING_CHARS = 300
SKIPPED_PARTS = frozenset({"site-packages", "_vendor", "encodings", "lib2to3", "idlelib", "_generated", "test"})

Kind = Literal["code", "prose"]
Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Document:
    """One text with its origin. ``source`` identifies the file it came from."""

    source: str
    kind: Kind
    text: str

    @property
    def split(self) -> Split:
        """Deterministic side of the split, a function of the file's identifier only."""
        return split_of(self.source)


@dataclass
class ManifestRow:
    """Contribution of one package: documents and UTF-8 bytes of training text, bytes held out."""

    package: str
    version: str
    licence: str
    code_files: int = 0
    code_bytes: int = 0
    prose_documents: int = 0
    prose_bytes: int = 0
    held_out_bytes: int = 0

    def add(self, document: Document) -> None:
        """Count one document."""
        size = len(document.text.encode())
        if document.split == "heldout":
            self.held_out_bytes += size
        elif document.kind == "code":
            self.code_files += 1
            self.code_bytes += size
        else:
            self.prose_documents += 1
            self.prose_bytes += size


def split_of(source: str) -> Split:
    """Side of the split for a file identifier: about 4 % of files are held out."""
    draw = int.from_bytes(hashlib.sha256(source.encode()).digest()[:4], "big") % 1000
    return "heldout" if draw < HELD_OUT_PER_MILLE else "train"


def is_read(path: PurePath) -> bool:
    """Whether the corpus may hold a file, by its path inside a source; what it may not hold is never trained on."""
    return path.suffix == ".py" and not SKIPPED_PARTS.intersection(path.parts)


def read_code(path: Path) -> str | None:
    """Text of a Python file, or ``None`` when it is a table, generated, unreadable or out of size."""
    if not MIN_FILE_BYTES <= path.stat().st_size <= MAX_FILE_BYTES:
        return None
    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n").expandtabs(8)
    except UnicodeDecodeError:
        return None
    digits = sum(character.isdigit() for character in text)
    if digits > MAX_DIGIT_SHARE * len(text) or max(map(len, text.splitlines()), default=0) > MAX_LINE_CHARS:
        return None
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def without_doctests(text: str) -> str:
    """Drop interactive examples: each ``>>>`` line up to the next blank line."""
    return re.sub(r"(?m)^[ ]*>>>.*\n(?:[ ]*\S.*\n?)*", "", text + "\n")


def prose_in(code: str) -> Iterator[str]:
    """Long documentation strings (and other long prose literals) of a Python file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if len(node.value) < MIN_DOCSTRING_CHARS:
            continue
        text = without_doctests(inspect.cleandoc(node.value)).strip() + "\n"
        letters = sum(character.isalpha() or character == " " for character in text)
        if len(text) >= MIN_DOCSTRING_CHARS and letters >= 0.8 * len(text):
            yield re.sub(r"\n{3,}", "\n\n", text)


def topics() -> Iterator[Document]:
    """The language reference's help topics; each topic is held out or kept as a file of its own."""
    from pydoc_data.topics import topics as texts

    for name, text in sorted(texts.items()):
        yield Document(f"stdlib:pydoc_data/topics.py#{name}", "prose", inspect.cleandoc(text).strip() + "\n")


def files_of(source: Source) -> list[tuple[str, Path]]:
    """``(identifier, path)`` of a source's Python files, in an order fixed by a hash of the identifier."""
    root = source.root()
    named = [
        (f"{source.name}:{path.relative_to(root).as_posix()}", path)
        for path in root.rglob("*.py")
        if is_read(path.relative_to(root))
    ]
    return sorted(named, key=lambda pair: hashlib.sha256(pair[0].encode()).hexdigest())


def documents_of(source: Source, seen: set[bytes]) -> Iterator[Document]:
    """Documents of one package; ``seen`` holds digests of texts already used.

    The byte limits bind training text only: a held-out file past the limit is still yielded, as held-out text.
    """

    def is_new(text: str) -> bool:
        digest = hashlib.sha256(re.sub(r"\s+", " ", text).encode()).digest()
        fresh = digest not in seen
        seen.add(digest)
        return fresh

    code_bytes = prose_bytes = 0
    prose = [Document(f"{source.name}:README", "prose", source.readme().strip() + "\n")] if source.readme() else []
    prose += list(topics()) if source.name == "stdlib" else []
    for name, path in files_of(source):
        code = read_code(path)
        if code is None or not is_new(code):
            continue
        size = len(code.encode())
        fits = code_bytes + size <= source.max_code_bytes
        code_bytes += size if fits else 0
        if fits or split_of(name) == "heldout":
            yield Document(name, "code", code)
        prose += [Document(name, "prose", text) for text in prose_in(code)]
    for document in prose:
        size = len(document.text.encode())
        fits = prose_bytes + size <= source.max_prose_bytes
        if (fits or document.split == "heldout") and is_new(document.text):
            prose_bytes += size if fits else 0
            yield document


def collect(sources: Iterable[Source] = SOURCES) -> tuple[list[Document], list[ManifestRow]]:
    """All documents, shuffled by hash, and what each package contributed."""
    documents: list[Document] = []
    rows: list[ManifestRow] = []
    seen: set[bytes] = set()
    for source in track(list(sources), description="reading packages"):
        row = ManifestRow(source.name, source.version(), source.licence)
        for document in documents_of(source, seen):
            row.add(document)
            documents.append(document)
        rows.append(row)
    documents.sort(key=lambda document: hashlib.sha256(document.text.encode()).hexdigest())
    return documents, rows


def load(split: Split, cache: Path = CACHE) -> list[Document]:
    """Documents of one side of the split, as written by :func:`main`."""
    with (cache / f"{split}.jsonl").open(encoding="utf-8") as lines:
        return [Document(**json.loads(line)) for line in lines]


def main(cache: Path = CACHE, manifest: Path = Path("training/manifest.json")) -> None:
    """Write ``train.jsonl`` and ``heldout.jsonl`` under CACHE and the MANIFEST."""
    documents, rows = collect()
    cache.mkdir(parents=True, exist_ok=True)
    for split in ("train", "heldout"):
        chosen = [document for document in documents if document.split == split]
        with (cache / f"{split}.jsonl").open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(asdict(document)) + "\n" for document in chosen)
        for kind in ("code", "prose"):
            texts = [document.text for document in chosen if document.kind == kind]
            typer.echo(f"{split:8} {kind:6} {len(texts):6} documents {sum(map(len, texts)) / 1e6:7.2f} M characters")
    manifest.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
