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
from turbospec.runtime.prompt_lookup import IndexedText


class Lookups:
    """Searches the texts of requests, which it indexes as they grow."""

    def __init__(self) -> None:
        self._texts: dict[str, IndexedText] = {}

    def find(self, request: VllmRequest, limit: int) -> tuple[list[int], float]:
        """Up to `limit` tokens that followed the last known ones before, and how many tokens match."""
        text = self._texts.get(request.request_id)
        if text is None or len(text.tokens) > request.num_tokens:
            text = self._texts[request.request_id] = IndexedText()
        text.extend(request.all_token_ids[len(text.tokens) : request.num_tokens])
        return text.continuation(limit)

    def view(self, requests: Sequence[VllmRequest], limits: IntArray, ahead: IntArray) -> LookupView:
        """What is found for the n requests of a step.

        Args:
            requests: of the step.
            limits: (n,) longest draft; 0 for no search.
            ahead: (n,) most tokens that are emitted before the draft, and are not known yet.
        """
        lengths, scores = np.zeros(len(requests), np.int64), np.zeros(len(requests))
        for row in np.flatnonzero(limits).tolist():
            tokens, score = self.find(requests[row], int(limits[row] + ahead[row]))
            lengths[row] = max(len(tokens) - int(ahead[row]), 0)
            scores[row] = score if lengths[row] else 0.0
        return LookupView(lengths, scores)

    def forget(self, names: Iterable[str]) -> None:
        """Drop the texts of these requests; names that are not known are ignored."""
        for name in names:
            self._texts.pop(name, None)
