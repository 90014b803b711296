"""Prompt look-up in one request's text: what followed its last tokens where they occurred before."""

from __future__ import annotations

from collections.abc import Sequence

MIN_MATCH = 2
"""Last tokens that must occur earlier."""
MAX_MATCH = 32
"""Tokens up to which the length of a match is counted."""
MAX_CANDIDATES = 64
"""Latest occurrences of the last tokens that are compared; a bound on the time of one search."""


class IndexedText:
    """The tokens of one request, and where each of their n-grams of `MIN_MATCH` tokens ended before.

    The index grows as tokens are emitted. A search compares a bounded number of occurrences, however long the text is.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []
        """For each token, where the n-gram that it ends ended before, as the number of tokens up to there; 0: never."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the next tokens."""
        for token in tokens:
            self.tokens.append(token)
            size = len(self.tokens)
            if size < MIN_MATCH:
                self._before.append(0)
                continue
            ngram = tuple(self.tokens[-MIN_MATCH:])
            self._before.append(self._latest.get(ngram, 0))
            self._latest[ngram] = size

    def continuation(self, limit: int, draft: Sequence[int] = ()) -> tuple[list[int], float]:
        """Up to `limit` tokens that followed the longest match, the latest of equals, and how many tokens match.

        Args:
            limit: most tokens of interest.
            draft: further tokens after the text, which are searched for with it and not kept.
        """
        if not draft:
            return self._continuation(limit)
        self.extend(draft)
        found = self._continuation(limit)
        for _ in draft:
            self._remove_last()
        return found

    def _remove_last(self) -> None:
        ngram, before = tuple(self.tokens[-MIN_MATCH:]), self._before.pop()
        if before:
            self._latest[ngram] = before
        else:
            self._latest.pop(ngram, None)
        self.tokens.pop()

    def _continuation(self, limit: int) -> tuple[list[int], float]:
        size = len(self.tokens)
        best = matched = found = 0
        end = self._before[-1] if self._before else 0
        for _ in range(MAX_CANDIDATES):
            if not end or (matched == MAX_MATCH and found == limit):
                break
            length, distance = self._match(end), size - end
            # A match that overlaps itself: the text repeats with this period, and is taken to go on so.
            continued = limit if length >= distance else min(limit, distance)
            if (length, continued) > (matched, found):
                best, matched, found = end, length, continued
            end = self._before[end - 1]
        return [self.tokens[best + place % (size - best)] for place in range(found)], float(matched)

    def _match(self, end: int) -> int:
        """How many tokens before `end` equal the last ones; `MIN_MATCH` of them are known to."""
        tokens, size, matched = self.tokens, len(self.tokens), MIN_MATCH
        while matched < min(MAX_MATCH, end) and tokens[end - 1 - matched] == tokens[size - 1 - matched]:
            matched += 1
        return matched
