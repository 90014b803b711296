"""Files with results, of simulations and of benchmarks: how they came about, and one row a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from turbospec.files.whole_file import write_whole

ALL_AT_ONCE = "inf"
"""The request rate of a row whose requests are all ready at the start, as `vllm bench serve` writes it."""
DIGITS = 6
"""Significant ones of a figure that is not whole; a run tells no more."""


def save(path: Path, meta: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a results file: `meta`, and one row a run."""
    document = {"meta": plain(meta), "rows": plain([dict(row) for row in rows])}
    write_whole(path, json.dumps(document, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """What JSON can hold: null for what is not finite, and plain numbers."""
    if isinstance(value, np.generic):
        value = cast(Any, value).item()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(item) for name, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast(Sequence[Any], value)]
    return value
