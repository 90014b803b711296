"""The part of `SuffixDecodingCache` that vLLM calls: drafts what followed the longest suffix when it last occurred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Draft(NamedTuple):
    token_ids: list[int]


class SuffixDecodingCache:
    """Looks into a request's own tokens only, where Arctic Inference's also has the responses of others."""

    def __init__(self, max_tree_depth: int, max_cached_requests: int) -> None:
        self._depth = max_tree_depth
        self._tokens: dict[str, list[int]] = {}
        self.cached_requests: set[str] = set()

    @property
    def active_requests(self) -> set[str]:
        return set(self._tokens)

    def start_request(self, req_id: str, prompt_token_ids: Sequence[int]) -> None:
        self._tokens[req_id] = [int(token) for token in prompt_token_ids]

    def stop_request(self, req_id: str) -> None:
        del self._tokens[req_id]

    def add_active_response(self, req_id: str, token_ids: Sequence[int]) -> None:
        self._tokens[req_id] += token_ids

    def speculate(
        self, req_id: str, context: Sequence[int], max_spec_tokens: int, max_spec_factor: float, min_token_prob: float
    ) -> Draft:
        tokens, suffix = self._tokens[req_id], [int(token) for token in context]
        assert tokens[-len(suffix) :] == suffix  # no step's tokens are missing
        for length in range(min(len(suffix), self._depth), 0, -1):
            for end in range(len(tokens) - 1, length - 1, -1):
                if tokens[end - length : end] == suffix[-length:]:
                    return Draft(tokens[end : end + min(max_spec_tokens, int(max_spec_factor * length))])
        return Draft([])
