"""Prompt look-up as a drafter's or a second source's search."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.turbospec_engine.harness import look_up
from turbospec_engine.lookup import NGramLookup


def request_of(tokens: list[int], row_id: int = 0) -> Any:
    return SimpleNamespace(row_id=row_id, tokens=np.array(tokens, np.int64), num_tokens=len(tokens))


def test_a_request_is_searched_as_it_grows() -> None:
    lookup = NGramLookup()
    assert look_up(lookup, request_of([1, 2, 3, 4]), 3) == ([], 0.0)
    assert look_up(lookup, request_of([1, 2, 3, 4, 1, 2]), 3) == ([3, 4, 1], 2.0)
    assert look_up(lookup, request_of([1, 2, 3, 4, 1, 2]), 0) == ([], 0.0)
    assert look_up(lookup, request_of([1, 2, 3, 4, 1, 2, 3]), 1) == ([4], 3.0)


def test_a_draft_is_searched_with_and_not_kept() -> None:
    lookup = NGramLookup()
    assert look_up(lookup, request_of([1, 2, 3, 4, 1]), 1, [2]) == ([3], 2.0)
    assert look_up(lookup, request_of([1, 2, 3, 4, 1]), 1, [5, 1, 5]) == ([1], 2.0), "the draft is text too"
    assert look_up(lookup, request_of([1, 2, 3, 4, 1, 5]), 1) == ([], 0.0)


def test_a_finished_request_is_forgotten() -> None:
    lookup = NGramLookup()
    for row_id in range(3):
        look_up(lookup, request_of([1, 2, 3], row_id), 3)
    lookup.finish(request_of([1, 2, 3], 1))
    lookup.finish(request_of([1, 2, 3], 7))
    assert lookup._rows.keys() == {0, 2}
    assert look_up(lookup, request_of([8, 9, 7, 8, 9], 1), 1) == ([7], 2.0), "nothing is left of the request before"
    assert lookup._rows == {0: 0, 1: 1, 2: 2}, "the index has room again"


def test_requests_of_a_step_are_searched_together() -> None:
    lookup = NGramLookup()
    requests = [
        request_of(tokens, row_id) for row_id, tokens in enumerate(([1, 2, 1], [5], [7, 8, 9, 7], [3, 4, 3, 4]))
    ]
    look_up(lookup, requests[3], 1)

    found = lookup.find(requests, np.array([2, 1, 0, 3]), [[2], [6], [8], []])

    assert found.lengths.tolist() == [2, 0, 0, 3]
    assert found.tokens[0, :2].tolist() == [1, 2]
    assert found.tokens[3].tolist() == [3, 4, 3]
    assert found.scores.tolist() == [2.0, 0.0, 0.0, 2.0]
    assert lookup._rows.keys() == {0, 1, 3}, "only requests that are searched for are indexed"
    assert lookup.find(requests, np.zeros(4, np.int64)).tokens.shape == (4, 0)
