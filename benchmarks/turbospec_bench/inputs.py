"""Digests of the files that a benchmark reads: an interrupted run is completed with the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

READ_BYTES = 2**20
"""Of each end of a file. A change between them is not noticed, but weights may have hundreds of gigabytes."""


def checkpoints(models: Path, folders: Iterable[str | None]) -> dict[str, Path]:
    """Weights, configurations and tokenizers in some of the folders of `models`, by their path there; None and missing
    folders have none."""
    named = [models / folder for folder in folders if folder is not None]
    files = [file for folder in named for ending in ("*.safetensors", "*.json") for file in folder.glob(ending)]
    return {f"{file.parent.name}/{file.name}": file for file in sorted(files)}


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """A digest of each file: of its size, its beginning and its end. Those that do not exist are left out."""
    return {name: _digest(path) for name, path in files.items() if path.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        size = path.stat().st_size
        digest = hashlib.sha256(f"{size} ".encode() + file.read(READ_BYTES))
        file.seek(max(size - READ_BYTES, 0))
        digest.update(file.read(READ_BYTES))
    return digest.hexdigest()[:16]
