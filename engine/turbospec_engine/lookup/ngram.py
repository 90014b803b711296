"""Prompt look-up: what followed the last tokens where they occurred earlier in the request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec.interface import IntArray
from turbospec.runtime.prompt_lookup import IndexedTexts
from turbospec_engine.lookup.base import Found
from turbospec_engine.request import Request


class NGramLookup:
    """Finds the occurrence with the longest match before it, the latest of equals, and copies what follows.

    The score is the number of tokens that match. A search compares a bounded number of occurrences, however long the
    request is: their places are indexed as tokens are emitted.
    """

    def __init__(self) -> None:
        self._texts = IndexedTexts()
        self._rows: dict[int, int] = {}

    def find(
        self, requests: Sequence[Request], limits: IntArray, drafts: Sequence[Sequence[int]] | None = None
    ) -> Found:
        n, longest, at = len(limits), int(limits.max(initial=0)), np.flatnonzero(limits)
        found = Found(np.zeros((n, longest), np.int64), np.zeros(n, np.int64), np.zeros(n))
        if not len(at):
            return found
        rows, new, added, drafted = list[int](), list[Sequence[int] | IntArray](), list[int](), list[int]()
        for place in at.tolist():
            request, draft = requests[place], () if drafts is None else drafts[place]
            row = self._rows.get(request.row_id)
            if row is None:
                row = self._rows[request.row_id] = self._texts.begin()
            emitted = request.tokens[self._texts.size(row) : request.num_tokens]
            rows.append(row)
            new.append(emitted)
            if draft:  # an empty list would become an array of floats
                new.append(draft)
            added.append(len(emitted) + len(draft))
            drafted.append(len(draft))
        tokens = np.concatenate(new)
        searched = self._texts.find(np.array(rows), np.array(added), tokens, limits[at], np.array(drafted))
        found.tokens[at], found.lengths[at], found.scores[at] = searched
        return found

    def finish(self, request: Request) -> None:
        row = self._rows.pop(request.row_id, None)
        if row is not None:
            self._texts.forget(row)
