"""Files with results of simulations."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def save(path: Path, meta: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write a results file: `meta`, and one row a run."""
    write_whole(path, json.dumps({"meta": plain(meta), "rows": plain(list(rows))}, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file at once, so that an interruption leaves either the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8")
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
