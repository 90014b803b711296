from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from turbospec import UserError
from turbospec.files.results_file import keep_earlier, save


def test_numbers_are_plain_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    save(path, {"seed": 2**53, "shape": (1, 2)}, [{"a": np.float32(0.5), "b": math.nan, "c": [1 / 3, np.int64(7)]}])
    assert json.loads(path.read_text()) == {
        "meta": {"seed": 2**53, "shape": [1, 2]},
        "rows": [{"a": 0.5, "b": None, "c": [0.333333, 7]}],
    }


def test_what_a_file_holds_is_kept_and_nothing_that_was_kept_before_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    keep_earlier(path)
    assert not [*tmp_path.iterdir()]
    for number in range(3):
        path.write_text(str(number))
        keep_earlier(path)
    kept = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert kept == {"r.json": "2", "r.json.bak": "0", "r.json.bak2": "1", "r.json.bak3": "2"}


def test_a_file_that_cannot_be_kept_is_the_users_mistake(tmp_path: Path) -> None:
    path = tmp_path / ("r" * 250 + ".json")
    path.write_text("results")
    with pytest.raises(UserError, match="cannot be kept"):
        keep_earlier(path)
    assert path.read_text() == "results"
