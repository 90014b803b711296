"""Looks up what followed the last tokens of vLLM's requests earlier in their own text, prompt and answer.

A draft of the look-up is verified one step after it was planned. It is therefore looked up twice: for the view of the
plan, and again when the step that verifies it is scheduled, with all tokens that are known by then. Tokens of a step
that has not ended are not known yet: what is found has to reach past them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from turbospec.hosts.vllm.scheduler.requests import VllmRequest
from turbospec.interface import IntArray, LookupView
from turbospec.runtime.prompt_lookup import Continuations, IndexedTexts


class Lookups:
    """Searches the texts of requests, which it indexes as they grow."""

    def __init__(self) -> None:
        self._texts = IndexedTexts()
        self._rows: dict[str, int] = {}

    def find(self, requests: Sequence[VllmRequest], limits: IntArray) -> Continuations:
        """Up to (n,) `limits` tokens that followed the last known ones of n requests before."""
        tokens: list[int] = []
        rows, added = np.zeros((2, len(requests)), np.int64)
        for i, request in enumerate(requests):
            row = self._rows.get(request.request_id)
            if row is not None and self._texts.size(row) > request.num_tokens:
                self.forget([request.request_id])
                row = None
            if row is None:
                row = self._rows[request.request_id] = self._texts.begin()
            rows[i], known = row, len(tokens)
            tokens += request.all_token_ids[self._texts.size(row) : request.num_tokens]
            added[i] = len(tokens) - known
        return self._texts.find(rows, added, np.array(tokens, np.int64), limits, np.zeros(len(rows), np.int64))

    def view(self, requests: Sequence[VllmRequest], limits: IntArray, ahead: IntArray) -> LookupView:
        """What is found for the n requests of a step.

        Args:
            requests: of the step.
            limits: (n,) longest draft; 0 for no search.
            ahead: (n,) most tokens that are emitted before the draft, and are not known yet.
        """
        lengths, scores = np.zeros(len(requests), np.int64), np.zeros(len(requests))
        searched = np.flatnonzero(limits)
        found = self.find([requests[row] for row in searched.tolist()], limits[searched] + ahead[searched])
        lengths[searched] = np.maximum(found.lengths - ahead[searched], 0)
        scores[searched] = np.where(lengths[searched] > 0, found.scores, 0.0)
        return LookupView(lengths, scores)

    def forget(self, names: Iterable[str]) -> None:
        """Drop the texts of these requests; names that are not known are ignored."""
        for name in names:
            row = self._rows.pop(name, None)
            if row is not None:
                self._texts.forget(row)
