"""Prompt look-up: what followed the last tokens where they occurred earlier in the request."""

from __future__ import annotations

from collections.abc import Sequence

from turbospec.runtime.prompt_lookup import IndexedText
from turbospec_engine.request import Request


class NGramLookup:
    """Finds the occurrence with the longest match before it, the latest of equals, and copies what follows.

    The score is the number of tokens that match. A search compares a bounded number of occurrences, however long the
    request is: their places are indexed as tokens are emitted.
    """

    def __init__(self) -> None:
        self._texts: dict[int, IndexedText] = {}

    def find(self, request: Request, limit: int, draft: Sequence[int] = ()) -> tuple[Sequence[int], float]:
        if not limit:
            return (), 0.0
        text = self._texts.get(request.row_id)
        if text is None:
            text = self._texts[request.row_id] = IndexedText()
        text.extend(request.tokens[len(text.tokens) : request.num_tokens].tolist())
        return text.continuation(limit, draft)

    def finish(self, request: Request) -> None:
        self._texts.pop(request.row_id, None)
