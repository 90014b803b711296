"""Prompt look-up: what followed the last tokens of a request where they occurred before in its own text.

Compiled, because it runs for every request in every step, beside the controller and not on the GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.hashing import first_place, table_bits
from turbospec.runtime.kernels import compiled, unnamed

MIN_MATCH = 2
"""Last tokens that must occur earlier."""
MAX_MATCH = 32
"""Tokens up to which the length of a match is counted."""
MAX_CANDIDATES = 64
"""Latest occurrences of the last tokens that are compared; a bound on the time of one search."""
MAX_PROBES = 64
"""Places of a hash table that are tried for an n-gram, which is not indexed if none is free: a bound on the time of one
token, whatever tokens a client sends."""
LEAST_ROOM = 64
"""Tokens that the shortest text has room for."""
NO_TEXT = -1
"""Room of a free row."""
HASH_FACTOR = 0x100000001B3
"""The prime of the FNV hash for 64 bits."""

_Places = NDArray[np.int32]


class _Texts(NamedTuple):
    """All texts; the arrays are updated in place. A text has a segment of each of the first three."""

    tokens: _Places
    """(places,) token ids."""
    before: _Places
    """(places,) for each token, where the n-gram of `MIN_MATCH` tokens that it ends ended before, as the number of
    tokens up to there; 0: never."""
    latest: _Places
    """(2 · places,) of each text a hash table with open addressing: where each of its n-grams ended last, in the same
    form; 0 for a free place."""
    starts: IntArray
    """(rows,) first place of each text."""
    rooms: IntArray
    """(rows,) places of each text, a power of 2; `NO_TEXT` for a free row."""
    sizes: IntArray
    """(rows,) tokens of each text."""


class Continuations(NamedTuple):
    """What was found for n texts."""

    tokens: IntArray
    """(n, longest limit) token ids; 0 past `lengths`."""
    lengths: IntArray
    """(n,) tokens found."""
    scores: FloatArray
    """(n,) tokens that match, up to `MAX_MATCH`; 0 where nothing was found."""


class IndexedTexts:
    """The tokens of several requests, and where each of their n-grams ended before.

    An index grows with its text. A search compares a bounded number of occurrences, however long the text is. When the
    arrays are made anew, t tokens in texts of at least `LEAST_ROOM` take between 32 · t and 64 · t bytes, and the
    former arrays exist until they are copied. Texts that have ended take room until then, or until there is no text.
    """

    def __init__(self) -> None:
        rows = np.zeros((3, 8), np.int64)
        self._texts = _Texts(*_segments(LEAST_ROOM), starts=rows[0], rooms=rows[1] + NO_TEXT, sizes=rows[2])
        self._used = 0
        """Places before the free ones, at the end."""
        # Compiled here, so that the first step does not wait for it.
        row = self.begin()
        self.find(*np.zeros((5, 1), np.int64))
        _move(unnamed(self._texts), unnamed(self._texts), row, 0, LEAST_ROOM)
        self.forget(row)

    def begin(self) -> int:
        """The row of a new text without tokens."""
        free = np.flatnonzero(self._texts.rooms == NO_TEXT)
        if not len(free):
            free = np.array([len(self._texts.rooms)])
            of_rows = {name: getattr(self._texts, name) for name in ("starts", "rooms", "sizes")}
            self._texts = self._texts._replace(
                **{name: np.concatenate([each, np.full(len(each), NO_TEXT)]) for name, each in of_rows.items()}
            )
        row = int(free[0])
        self._texts.rooms[row] = self._texts.sizes[row] = 0
        return row

    def size(self, row: int) -> int:
        """Tokens of a text."""
        return int(self._texts.sizes[row])

    def forget(self, row: int) -> None:
        """Drop a text."""
        self._texts.rooms[row] = NO_TEXT
        if (self._texts.rooms == NO_TEXT).all():
            self._renew(LEAST_ROOM)

    def find(
        self, rows: IntArray, added: IntArray, tokens: IntArray, limits: IntArray, drafted: IntArray
    ) -> Continuations:
        """Add the next tokens of some texts, and search for what followed their last ones.

        Of equally long matches, the one that more tokens follow counts, then the latest.

        Args:
            rows: (n,) of the texts, all different.
            added: (n,) tokens to add to each.
            tokens: (Σ added,) these, text after text.
            limits: (n,) most tokens of interest; 0 for no search.
            drafted: (n,) how many of the added tokens are a draft: the last ones, which are not kept.
        """
        n = len(rows)
        found = Continuations(np.zeros((n, int(limits.max(initial=0))), np.int64), np.zeros(n, np.int64), np.zeros(n))
        if not _find(unnamed(self._texts), rows, added, tokens, limits, drafted, *found):
            self._make_room(rows, self._texts.sizes[rows] + added)
            _find(unnamed(self._texts), rows, added, tokens, limits, drafted, *found)
        return found

    def _make_room(self, rows: IntArray, needed: IntArray) -> None:
        """Move each of these texts that has room for fewer than the `needed` tokens."""
        rooms = np.array([1 << table_bits(max(int(size), LEAST_ROOM)) for size in needed])
        short = needed > self._texts.rooms[rows]
        rows, rooms, former = rows[short], rooms[short], self._texts
        if self._used + rooms.sum() > len(former.tokens):
            # New arrays with all texts one after the other: also those that stay as long as they are.
            of_all = former.rooms.copy()
            of_all[rows] = rooms
            rows = np.flatnonzero(of_all > 0)
            rooms = of_all[rows]
            self._renew(2 * int(rooms.sum()))
        for row, room in zip(rows.tolist(), rooms.tolist(), strict=True):
            _move(unnamed(former), unnamed(self._texts), row, self._used, room)
            self._used += room

    def _renew(self, places: int) -> None:
        """Make new arrays for the tokens of all texts, still empty."""
        names = ("tokens", "before", "latest")
        self._texts = self._texts._replace(**dict(zip(names, _segments(places), strict=True)))
        self._used = 0


def _segments(places: int) -> tuple[_Places, _Places, _Places]:
    """Arrays for texts: tokens, before, latest."""
    return np.zeros(places, np.int32), np.zeros(places, np.int32), np.zeros(2 * places, np.int32)


@compiled
def _move(former: _Texts, texts: _Texts, row: int, start: int, room: int) -> None:
    """Copy a text with its index from the former arrays, or from its former place, to places that no text has had."""
    former, texts = _Texts(*former), _Texts(*texts)
    size, begin, same_room = texts.sizes[row], texts.starts[row], texts.rooms[row] == room
    texts.tokens[start : start + size] = former.tokens[begin : begin + size]
    texts.starts[row], texts.rooms[row] = start, room
    if same_room:
        texts.before[start : start + size] = former.before[begin : begin + size]
        texts.latest[2 * start : 2 * (start + room)] = former.latest[2 * begin : 2 * (begin + room)]
    else:
        _index(texts, row, 0)


@compiled
def _index(texts: _Texts, row: int, first: int) -> None:
    """Index the tokens of a text from number `first` on."""
    start = texts.starts[row]
    for end in range(first + 1, texts.sizes[row] + 1):
        texts.before[start + end - 1] = 0
        if end >= MIN_MATCH:
            place = _place(texts, row, end)
            if place >= 0:
                texts.before[start + end - 1] = texts.latest[place]
                texts.latest[place] = end


@compiled
def _cut(texts: _Texts, row: int, size: int) -> None:
    """Remove the tokens of a text after the first `size`.

    N-grams leave the hash table in the reverse of the order in which they came, so that no other was placed behind
    them.
    """
    for end in range(texts.sizes[row], size, -1):
        place = _place(texts, row, end) if end >= MIN_MATCH else -1
        if place >= 0:
            texts.latest[place] = texts.before[texts.starts[row] + end - 1]
    texts.sizes[row] = size


@compiled
def _place(texts: _Texts, row: int, end: int) -> int:
    """The place in `latest` of the n-gram that ends there, or a free one for it; -1 if neither is found."""
    start, room = int(texts.starts[row]), int(texts.rooms[row])
    tokens, key = texts.tokens[start : start + end], 0
    for i in range(end - MIN_MATCH, end):
        key = HASH_FACTOR * key + tokens[i]
    place = first_place(key, table_bits(2 * room))
    for _ in range(MAX_PROBES):
        former = int(texts.latest[2 * start + place])
        if former == 0 or _matched(tokens, former, end, MIN_MATCH) == MIN_MATCH:
            return 2 * start + place
        place = (place + 1) & (2 * room - 1)
    return -1


@compiled
def _matched(tokens: _Places, end: int, other: int, most: int) -> int:
    """How many tokens before `end` equal those before `other`, which is later; counted up to `most`."""
    matched = 0
    while matched < min(most, end) and tokens[end - 1 - matched] == tokens[other - 1 - matched]:
        matched += 1
    return matched


@compiled
def _find(
    texts: _Texts,
    rows: IntArray,
    added: IntArray,
    new_tokens: IntArray,
    limits: IntArray,
    drafted: IntArray,
    found: IntArray,
    lengths: IntArray,
    scores: FloatArray,
) -> bool:
    """Do `IndexedTexts.find`, into the last three; False, and nothing is done, if a text lacks room."""
    texts = _Texts(*texts)
    for i in range(len(rows)):
        if texts.sizes[rows[i]] + added[i] > texts.rooms[rows[i]]:
            return False
    taken = 0
    for i in range(len(rows)):
        row = rows[i]
        start, size = int(texts.starts[row]), int(texts.sizes[row])
        texts.sizes[row] += added[i]
        for j in range(added[i]):
            texts.tokens[start + size + j] = new_tokens[taken + j]
        _index(texts, row, size)
        taken += added[i]
        if limits[i] > 0:
            size += added[i]
            tokens, before = texts.tokens[start : start + size], texts.before[start : start + size]
            lengths[i], scores[i] = _continuation(tokens, before, limits[i], found[i])
        if drafted[i] > 0:
            _cut(texts, row, texts.sizes[row] - drafted[i])
    return True


@compiled
def _continuation(tokens: _Places, before: _Places, limit: int, found: IntArray) -> tuple[int, float]:
    """Fill in up to `limit` tokens that followed the longest match.

    Returns:
        How many, and how many tokens match.
    """
    size = len(tokens)
    best = matched = length = 0
    end = int(before[size - 1]) if size else 0
    for _ in range(MAX_CANDIDATES):
        if end == 0 or (matched == MAX_MATCH and length == limit):
            break
        here, distance = _matched(tokens, end, size, MAX_MATCH), size - end
        # A match that overlaps itself: the text repeats with this period, and is taken to go on so.
        continued = limit if here >= distance else min(limit, distance)
        if here > matched or (here == matched and continued > length):
            best, matched, length = end, here, continued
        end = int(before[end - 1])
    for place in range(length):
        found[place] = tokens[best + place % (size - best)]
    return length, float(matched)
