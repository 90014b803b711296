"""Prompt look-up: proposes what followed the last tokens where they occurred earlier in the request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec import DraftGate
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.request import Request


class NGramDrafter:
    """Finds the latest earlier occurrence of the request's longest suffix and proposes the tokens after it.

    It runs no model and has no KV cache. It proposes fewer tokens than planned, or none, where the match is short or
    nothing matches.
    """

    parallel = True
    max_model_len = None
    hidden_states = None

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2) -> None:
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram

    def lag_tokens(self, request: Request) -> int:
        return 0

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        draft = Draft.empty(len(requests))
        draft.tokens = np.zeros((len(requests), int(lengths.max())), np.int64)
        rows = np.flatnonzero(lengths).tolist()
        for row in rows:
            request = requests[row]
            found = self.continuation(request.tokens[: request.num_tokens], int(lengths[row]))
            draft.tokens[row, : len(found)] = found
            draft.proposed[row] = draft.drafted[row] = len(found)
        draft.draft_rows = np.array([len(rows)])
        return draft

    def continuation(self, tokens: IntArray, length: int) -> IntArray:
        """Up to `length` tokens that followed the suffix of `tokens`, shape (t,), where it occurred earlier."""
        for size in range(min(self.max_ngram, len(tokens) - 1), self.min_ngram - 1, -1):
            suffix = tokens[-size:]
            matches = tokens[size - 1 : -1] == suffix[-1]
            for back in range(1, size):
                matches = matches & (tokens[size - 1 - back : -1 - back] == suffix[-1 - back])
            starts = np.flatnonzero(matches) + size
            if len(starts):
                # The latest match with a full continuation, else the one with the longest.
                full = starts[starts + length <= len(tokens)]
                start = full[-1] if len(full) else starts[0]
                return tokens[start : start + length]
        return tokens[:0]
