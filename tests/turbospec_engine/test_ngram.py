"""Prompt look-up."""

from __future__ import annotations

import numpy as np
import pytest

from turbospec_engine.drafter import NGramDrafter


@pytest.mark.parametrize(
    ("tokens", "length", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 9, [3, 4, 1, 2]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 1, [4]),
        ([5, 1, 2, 3, 9, 6, 1, 2, 4, 9, 5, 1, 2], 1, [3]),
        ([1, 2, 3, 4, 5], 3, []),
        ([7, 7, 7, 7], 2, [7]),
        ([1], 3, []),
    ],
    ids=["match", "to the end", "latest", "longest suffix", "no match", "repetition", "one token"],
)
def test_continuation(tokens: list[int], length: int, expected: list[int]) -> None:
    found = NGramDrafter().continuation(np.array(tokens), length)
    assert found.tolist() == expected
