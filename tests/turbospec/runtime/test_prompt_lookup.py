"""Prompt look-up over many texts that grow, end and move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.runtime.hashing import first_place, table_bits
from turbospec.runtime.prompt_lookup import (
    LEAST_ROOM,
    MAX_CANDIDATES,
    MAX_MATCH,
    MAX_PROBES,
    MIN_MATCH,
    IndexedTexts,
)

NONE = np.zeros(1, np.int64)


def find(texts: IndexedTexts, row: int, added: list[int], limit: int) -> tuple[list[int], float]:
    """Add tokens to one text, and search it."""
    found = texts.find(np.array([row]), np.array([len(added)]), np.array(added, np.int64), np.array([limit]), NONE)
    return found.tokens[0, : found.lengths[0]].tolist(), float(found.scores[0])


@pytest.mark.parametrize(
    ("tokens", "limit", "expected", "score"),
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
        ([1, 2, 1, 2], 0, [], 0),
        ([1], 3, [], 0),
        ([], 3, [], 0),
        (list(range(100)) * 2, 3, [0, 1, 2], MAX_MATCH),
    ],
    ids=[
        "match", "to the end", "latest", "period", "latest that is long enough", "longest match", "no match",
        "repetition", "longer period", "no limit", "one token", "no token", "longest counted",
    ],
)  # fmt: skip
def test_continuation(tokens: list[int], limit: int, expected: list[int], score: float) -> None:
    texts = IndexedTexts()
    assert find(texts, texts.begin(), tokens, limit) == (expected, score)


def slow_search(tokens: list[int], limit: int) -> tuple[list[int], float]:
    """The same by a search of the whole text."""
    best, size = (0, 0, 0), len(tokens)
    for end in range(size - 1, MIN_MATCH - 1, -1):
        matched = 0
        while matched < min(MAX_MATCH, end) and tokens[end - 1 - matched] == tokens[-1 - matched]:
            matched += 1
        if matched >= MIN_MATCH:
            length = limit if matched >= size - end else min(limit, size - end)
            best = max(best, (matched, length, end))
    score, length, end = best
    return [tokens[end + place % (size - end)] for place in range(length)], float(score)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_texts_that_grow_and_end_in_turn_are_searched_as_if_each_was_alone(data: st.DataObject) -> None:
    texts, known = IndexedTexts(), dict[int, list[int]]()
    for _ in range(data.draw(st.integers(1, 12))):
        for row in data.draw(st.sets(st.sampled_from(sorted(known)))) if known else ():
            texts.forget(row)
            del known[row]
        for _ in range(data.draw(st.integers(0, 4))):
            row = texts.begin()
            assert row not in known
            known[row] = []
        rows = data.draw(st.permutations(sorted(known)))
        alphabet = st.integers(0, data.draw(st.sampled_from([1, 3, 40, 2**31 - 1])))
        added = [data.draw(st.lists(alphabet, max_size=70)) for _ in rows]
        limits = np.array([data.draw(st.integers(0, 9)) for _ in rows], np.int64)
        flat = [token for each in added for token in each]
        drafted = [data.draw(st.integers(0, len(each))) for each in added]
        sizes = [len(each) for each in added]
        found = texts.find(*(np.array(each, np.int64) for each in (rows, sizes, flat, limits, drafted)))
        for i, row in enumerate(rows):
            searched = known[row] + added[i]
            known[row] = searched[: len(searched) - drafted[i]]
            assert texts.size(row) == len(known[row])
            if limits[i] and searched and searched.count(searched[-1]) <= MAX_CANDIDATES:
                tokens = found.tokens[i, : found.lengths[i]].tolist()
                assert (tokens, found.scores[i]) == slow_search(searched, int(limits[i]))


def test_a_search_compares_a_bounded_number_of_places() -> None:
    """The longer match is one place further back than a search goes."""
    longer = [8, 9, 1, 2, 7]
    nearer = [token for place in range(MAX_CANDIDATES - 1) for token in (1, 2, 10 + place)]
    for last, expected in (([], 7), ([1, 2, 6], 10 + MAX_CANDIDATES - 2)):
        texts = IndexedTexts()
        assert find(texts, texts.begin(), longer + nearer + last + [8, 9, 1, 2], 1)[0] == [expected if not last else 6]


def test_tokens_that_collide_take_bounded_time_and_change_no_other_search() -> None:
    """All n-grams (1, x) of this text hash to one place of the table; the first of them are indexed."""
    room, texts = 4096, IndexedTexts()
    bits = table_bits(2 * room)
    wanted = first_place(0x100000001B3 + 5, bits)
    colliding = [token for token in range(2_000_000) if first_place(0x100000001B3 + token, bits) == wanted]
    assert len(colliding) > 3 * MAX_PROBES
    row, tokens = texts.begin(), [token for each in colliding[: 3 * MAX_PROBES] for token in (1, each)]
    find(texts, row, [9] * (room // 2 + 1), 0)
    find(texts, row, tokens, 0)
    assert find(texts, row, [1, colliding[0]], 1) == ([1], 2.0)
    assert find(texts, row, [1, tokens[-1]], 1) == ([], 0.0), "not indexed"
    assert find(texts, row, [1_999_999, 7, 1_999_999], 1) == ([], 0.0)
    assert find(texts, row, [7], 1) == ([1_999_999], 2.0)


def test_memory_is_used_again() -> None:
    texts = IndexedTexts()
    last = texts.begin()
    for first in range(200):
        row = texts.begin()
        find(texts, row, list(range(first, first + 1000)), 1)
        texts.forget(row)
    assert len(texts._texts.tokens) <= 4 * 1024
    assert len(texts._texts.rooms) == 8
    texts.forget(last)
    assert len(texts._texts.tokens) == LEAST_ROOM
