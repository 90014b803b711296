from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from turbospec.files.results_file import save


def test_numbers_are_plain_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    save(path, {"seed": 2**53, "shape": (1, 2)}, [{"a": np.float32(0.5), "b": math.nan, "c": [1 / 3, np.int64(7)]}])
    assert json.loads(path.read_text()) == {
        "meta": {"seed": 2**53, "shape": [1, 2]},
        "rows": [{"a": 0.5, "b": None, "c": [0.333333, 7]}],
    }
