"""Prompt look-up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turbospec.runtime.prompt_lookup import MAX_CANDIDATES, MAX_MATCH, MIN_MATCH, IndexedText
from turbospec_engine.lookup import NGramLookup


def request_of(tokens: list[int], row_id: int = 0) -> Any:
    return SimpleNamespace(row_id=row_id, tokens=np.array(tokens, np.int64), num_tokens=len(tokens))


@pytest.mark.parametrize(
    ("tokens", "length", "expected", "score"),
    [
        ([1, 2, 3, 4, 1, 2], 2, [3, 4], 2),
        ([1, 2, 3, 4, 1, 2], 9, [3, 4, 1, 2], 2),
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 1, [4], 3),
        ([1, 2, 3, 9, 8, 1, 2, 1, 2], 4, [1, 2, 1, 2], 2),
        ([1, 2, 3, 9, 6, 1, 2, 4, 7, 1, 2], 5, [3, 9, 6, 1, 2], 2),
        ([5, 1, 2, 3, 9, 6, 1, 2, 4, 9, 5, 1, 2], 1, [3], 3),
        ([1, 2, 3, 4, 5], 3, [], 0),
        ([7, 7, 7, 7], 6, [7, 7, 7, 7, 7, 7], 3),
        ([1, 2, 3, 1, 2, 3, 1], 5, [2, 3, 1, 2, 3], 4),
        ([1, 2], 0, [], 0),
        ([1], 3, [], 0),
        (list(range(100)) * 2, 3, [0, 1, 2], MAX_MATCH),
    ],
    ids=[
        "match", "to the end", "latest", "period", "latest that is long enough", "longest match", "no match",
        "repetition", "longer period", "no limit", "one token", "longest counted",
    ],
)  # fmt: skip
def test_continuation(tokens: list[int], length: int, expected: list[int], score: float) -> None:
    found, matched = NGramLookup().find(request_of(tokens), length)
    assert list(found) == expected
    assert matched == score


def slow_search(tokens: list[int], limit: int) -> tuple[int, int]:
    """Length of the best match and how far it is continued, over all places."""
    best = (0, 0)
    for end in range(len(tokens) - 1, MIN_MATCH - 1, -1):
        matched = 0
        while matched < min(MAX_MATCH, end) and tokens[end - 1 - matched] == tokens[-1 - matched]:
            matched += 1
        if matched >= MIN_MATCH:
            distance = len(tokens) - end
            best = max(best, (matched, limit if matched >= distance else min(limit, distance)))
    return best


def test_the_index_finds_what_a_search_of_the_whole_text_finds() -> None:
    rng = np.random.default_rng(0)
    for seed in range(40):
        lookup, tokens = NGramLookup(), rng.integers(0, 4, 3).tolist()
        while len(tokens) < 150:
            if rng.random() < 0.3 and len(tokens) > 20:
                start = int(rng.integers(len(tokens) - 10))
                tokens += tokens[start : start + int(rng.integers(1, 10))]
            else:
                tokens.append(int(rng.integers(0, 12)))
            if rng.random() < 0.5:
                found, matched = lookup.find(request_of(tokens, seed), 6)
                assert (matched, len(found)) == slow_search(tokens, 6)
                draft = rng.integers(0, 12, int(rng.integers(1, 6))).tolist()
                _, matched = lookup.find(request_of(tokens, seed), 6, draft)
                assert matched == slow_search([*tokens, *draft], 6)[0]


def test_a_draft_is_not_kept() -> None:
    """In a draft that is longer than the text too."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        tokens = rng.integers(0, 3, int(rng.integers(1, 12))).tolist()
        searched, untouched = IndexedText(), IndexedText()
        searched.extend(tokens)
        untouched.extend(tokens)
        searched.continuation(4, rng.integers(0, 3, int(rng.integers(1, 15))).tolist())
        assert vars(searched) == vars(untouched)


def test_a_search_compares_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    match = IndexedText._match
    monkeypatch.setattr(IndexedText, "_match", lambda self, end: compared.append(end) or match(self, end))
    tokens = [token for place in range(500) for token in (1, 2, 10 + place)] + [1, 2]
    found, _ = NGramLookup().find(request_of(tokens), 3)
    assert list(found) == [509, 1, 2]
    assert len(compared) == MAX_CANDIDATES


def test_a_finished_request_is_forgotten() -> None:
    lookup = NGramLookup()
    for row_id in range(3):
        lookup.find(request_of([1, 2, 3], row_id), 3)
    lookup.finish(request_of([1, 2, 3], 1))
    lookup.finish(request_of([1, 2, 3], 7))
    assert lookup._texts.keys() == {0, 2}
