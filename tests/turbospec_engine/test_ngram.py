"""Prompt look-up as a drafter's or a second source's search."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from turbospec_engine.lookup import NGramLookup


def request_of(tokens: list[int], row_id: int = 0) -> Any:
    return SimpleNamespace(row_id=row_id, tokens=np.array(tokens, np.int64), num_tokens=len(tokens))


def test_a_request_is_searched_as_it_grows() -> None:
    lookup = NGramLookup()
    assert lookup.find(request_of([1, 2, 3, 4]), 3) == ([], 0.0)
    assert lookup.find(request_of([1, 2, 3, 4, 1, 2]), 3) == ([3, 4, 1], 2.0)
    assert lookup.find(request_of([1, 2, 3, 4, 1, 2]), 0) == ((), 0.0)
    assert lookup.find(request_of([1, 2, 3, 4, 1, 2, 3]), 1) == ([4], 3.0)


def test_a_draft_is_searched_with_and_not_kept() -> None:
    lookup = NGramLookup()
    assert lookup.find(request_of([1, 2, 3, 4, 1]), 1, [2]) == ([3], 2.0)
    assert lookup.find(request_of([1, 2, 3, 4, 1]), 1, [5, 1, 5]) == ([1], 2.0), "the draft is text too"
    assert lookup.find(request_of([1, 2, 3, 4, 1, 5]), 1) == ([], 0.0)


def test_a_finished_request_is_forgotten() -> None:
    lookup = NGramLookup()
    for row_id in range(3):
        lookup.find(request_of([1, 2, 3], row_id), 3)
    lookup.finish(request_of([1, 2, 3], 1))
    lookup.finish(request_of([1, 2, 3], 7))
    assert lookup._rows.keys() == {0, 2}
    assert lookup.find(request_of([8, 9, 7, 8, 9], 1), 1) == ([7], 2.0), "nothing is left of the request before"
