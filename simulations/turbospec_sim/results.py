"""The results file of simulations: `meta`, and one row a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turbospec.errors import UserError


def check_output(path: Path) -> None:
    """Raises:
    UserError: the file cannot be written, which is to be said before hours of simulating.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: its folder cannot be made ({error.strerror}); name another file") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{path}: cannot be written; name another file")


def save(path: Path, meta: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write the file at once, so that an interruption leaves either the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps({"meta": plain(meta), "rows": plain(list(rows))}, allow_nan=False) + "\n")
    os.replace(draft, path)


def plain(value: Any) -> Any:
    """What JSON can hold: null for what is not finite, and plain numbers."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
