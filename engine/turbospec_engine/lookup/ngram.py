"""Prompt look-up: what followed the last tokens where they occurred earlier in the request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec.runtime.prompt_lookup import IndexedTexts
from turbospec_engine.request import Request


class NGramLookup:
    """Finds the occurrence with the longest match before it, the latest of equals, and copies what follows.

    The score is the number of tokens that match. A search compares a bounded number of occurrences, however long the
    request is: their places are indexed as tokens are emitted.
    """

    def __init__(self) -> None:
        self._texts = IndexedTexts()
        self._rows: dict[int, int] = {}

    def find(self, request: Request, limit: int, draft: Sequence[int] = ()) -> tuple[Sequence[int], float]:
        if not limit:
            return (), 0.0
        row = self._rows.get(request.row_id)
        if row is None:
            row = self._rows[request.row_id] = self._texts.begin()
        new = np.append(request.tokens[self._texts.size(row) : request.num_tokens], np.array(draft, np.int64))
        found = self._texts.find(*(np.array(each) for each in ([row], [len(new)], new, [limit], [len(draft)])))
        return found.tokens[0, : found.lengths[0]].tolist(), float(found.scores[0])

    def finish(self, request: Request) -> None:
        row = self._rows.pop(request.row_id, None)
        if row is not None:
            self._texts.forget(row)
