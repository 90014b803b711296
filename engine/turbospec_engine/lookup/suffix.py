"""Suffix decoding: the most frequent continuation in the request and in earlier answers, by a suffix tree.

Source: "SuffixDecoding" (arXiv 2411.04975), in the authors' implementation, the package `arctic-inference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turbospec import UserError
from turbospec.interface import IntArray
from turbospec_engine.lookup.base import Found
from turbospec_engine.request import Request

MAX_TREE_DEPTH = 24
"""Tokens that are matched and drafted together; this and the next two are vLLM's defaults."""
MAX_DRAFT_PER_MATCH = 1.0
"""Longest draft, as a multiple of the tokens that match."""
MIN_PROBABILITY = 0.1
"""Estimated probability of a draft token below which the draft ends."""
MAX_ANSWERS = 1000
"""Latest answers that are kept, unfinished ones included. A token of an answer takes about 320 bytes."""


class SuffixLookup:
    """Drafts from a tree over the request's own tokens and one over the answers of earlier requests.

    The score is the sum of the estimated probabilities of the draft tokens, the accepted length that the tree expects.

    Raises:
        UserError: `arctic-inference` is not installed.
    """

    def __init__(self) -> None:
        self._trees = _suffix_decoding_cache()(MAX_TREE_DEPTH, MAX_ANSWERS)
        self._known: dict[int, int] = {}
        """Tokens of each unfinished request that are in the trees."""

    def find(
        self, requests: Sequence[Request], limits: IntArray, drafts: Sequence[Sequence[int]] | None = None
    ) -> Found:
        tokens: list[Sequence[int]] = [()] * len(requests)
        scores = [0.0] * len(requests)
        for row in np.flatnonzero(limits).tolist():
            request, draft = requests[row], () if drafts is None else drafts[row]
            self._take_in(request)
            first = max(0, request.num_tokens - MAX_TREE_DEPTH)
            last = np.concatenate([request.tokens[first : request.num_tokens], draft])[-MAX_TREE_DEPTH:]
            found = self._trees.speculate(
                request.row_id,
                last.astype(np.int32),
                max_spec_tokens=int(limits[row]),
                max_spec_factor=MAX_DRAFT_PER_MATCH,
                min_token_prob=MIN_PROBABILITY,
            )
            tokens[row], scores[row] = found.token_ids, float(found.score)
        return Found.of(tokens, scores)

    def finish(self, request: Request) -> None:
        if request.row_id in self._known:
            self._take_in(request)
            self._trees.stop_request(request.row_id)
            del self._known[request.row_id]

    def _take_in(self, request: Request) -> None:
        known = self._known.get(request.row_id)
        if known is None:
            known = request.num_prompt_tokens
            self._trees.start_request(request.row_id, request.tokens[:known].astype(np.int32))
        if known < request.num_tokens:
            self._trees.add_active_response(request.row_id, request.tokens[known : request.num_tokens].astype(np.int32))
        self._known[request.row_id] = request.num_tokens


def _suffix_decoding_cache() -> Any:
    """The class `SuffixDecodingCache`, which is imported only where it is used."""
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache  # pyright: ignore
    except ImportError as error:
        raise UserError(
            "suffix decoding needs the package arctic-inference; in a clone of TurboSpec install it with "
            "`pip install '.[suffix]'`, or use ngram"
        ) from error
    return SuffixDecodingCache
