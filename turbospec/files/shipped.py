"""Files shipped with TurboSpec, found by name or by path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from turbospec.errors import UserError
from turbospec.files.suggestions import nearest


def shipped_files(package: str, folder: str) -> dict[str, Path]:
    """The YAML files of a folder inside a package (wheel) or beside it (repository), by name without `.yaml`."""
    root = Path(str(resources.files(package)))
    in_wheel, in_repository = root / folder, root.parent / folder
    found = in_wheel if in_wheel.is_dir() else in_repository
    return {path.stem: path for path in sorted(found.glob("*.yaml"))}


def is_name(source: str) -> bool:
    """Whether `source` has the form of a shipped file's name; a path has a suffix or a folder."""
    path = Path(source)
    return not path.suffix and path.parent == Path()


def find_file(source: str | Path, shipped: Mapping[str, Path], kind: str) -> Path:
    """Path of a file, given its path or the name of a shipped one.

    Args:
        source: path or name.
        shipped: paths of the shipped files, by name.
        kind: what the error calls such a file.

    Raises:
        UserError: a bare name that is neither shipped nor a file.
    """
    path = Path(source)
    if not is_name(str(source)):
        return path
    if path.name in shipped:
        return shipped[path.name]
    # Path("") is this folder. Unlike Path.exists, os.path.exists never raises.
    if source != "" and os.path.exists(path):
        return path
    raise UserError(f"no {kind} is called `{source}`; {nearest(path.name, shipped)} (or give a file's path)")
