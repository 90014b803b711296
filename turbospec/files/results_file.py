"""Result files of simulations and benchmarks: the settings of all runs, and one row per run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np

from turbospec.errors import UserError
from turbospec.files.writing import write_whole

ALL_AT_ONCE = "inf"
"""Request rate of a row whose requests all arrive at the start, as `vllm bench serve` writes it."""
DIGITS = 6
"""Significant digits of a fraction; a run does not measure more."""


def save(path: Path, meta: dict[str, Any], rows: Sequence[Mapping[str, Any]], *, digits: int | None = DIGITS) -> None:
    """Write a result file.

    Args:
        path: the file; its folder is made.
        meta: settings of all runs.
        rows: one per run.
        digits: significant digits of fractions; None for all, so that a run that is resumed goes on with the same
            numbers.
    """
    document = {"meta": plain(meta, digits), "rows": plain([dict(row) for row in rows], digits)}
    write_whole(path, json.dumps(document, allow_nan=False) + "\n")


def keep_earlier(path: Path) -> None:
    """Keep what a file holds beside it, as `NAME.bak`, before results of a new run replace it.

    What was kept before stays: if there is such a file already, the name is `NAME.bak2`, and so on.

    Raises:
        UserError: it cannot be kept.
    """
    if not path.is_file():
        return
    names = (path.with_name(f"{path.name}.bak{number if number > 1 else ''}") for number in count(1))
    try:
        shutil.copyfile(path, next(name for name in names if not name.exists()))
    except OSError as error:
        raise UserError(f"{path}: is there already and cannot be kept ({error}); name another file") from error


def plain(value: Any, digits: int | None = DIGITS) -> Any:
    """`value` as JSON can hold it: Python numbers for numpy's, rounded to `digits`; None for what is not finite."""
    if isinstance(value, np.generic):
        value = cast(Any, value).item()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: plain(item, digits) for name, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [plain(item, digits) for item in cast(Sequence[Any], value)]
    return value
