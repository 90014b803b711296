# pyright: basic, reportMissingImports=false
"""Drafters of vLLM's model runner V1 that make their full draft or none: what exceeds a step's draft length is cut off.

vLLM asserts the full length for some of them, and sizes the buffers of others for it. With a draft length of 0,
drafters without state are not called. Suffix decoding and n-gram look-up on the device keep a history of all tokens:
they take up the step's tokens, and only the look-up is left out. Drafters with a KV cache are left to
`drafter_on_demand`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from turbospec.hosts.vllm.shared.support import HEAD_METHODS
from turbospec.hosts.vllm.worker.replaced import replaced


def install(model_runner) -> None:
    """Let a worker's drafter be asked for any draft length up to its own; does nothing where vLLM allows it."""
    speculation, drafter = model_runner.speculative_config, model_runner.drafter
    if speculation.method in HEAD_METHODS:
        _skip_call(model_runner)
    if speculation.method == "suffix":
        drafter.propose = _SuffixDrafts(drafter).propose
    elif speculation.method == "ngram_gpu":
        drafter.propose = _NgramDrafts(drafter).propose
    elif speculation.method == "medusa" or speculation.parallel_drafting:
        drafter.propose = _BlockDrafts(drafter).propose


def _skip_call(model_runner) -> None:
    propose = model_runner.propose_draft_token_ids

    def propose_draft_token_ids(scheduler_output, sampled_token_ids, *others):
        if scheduler_output.num_spec_tokens_to_schedule == 0:
            return [[] for _ in sampled_token_ids]
        return propose(scheduler_output, sampled_token_ids, *others)

    model_runner.propose_draft_token_ids = propose_draft_token_ids


class _BlockDrafts:
    """Wraps a drafter whose one pass drafts all positions."""

    def __init__(self, drafter) -> None:
        self._drafter, self._propose = drafter, drafter.propose
        self._longest = drafter.num_speculative_tokens

    def propose(self, num_speculative_tokens, **others):
        """Like the drafter's own: (n, num_speculative_tokens) token ids."""
        drafts = self._propose(num_speculative_tokens=self._longest, **others)
        probabilities = getattr(self._drafter, "_last_draft_probs", None)
        if probabilities is not None:
            cut = probabilities[:, :num_speculative_tokens].contiguous() if num_speculative_tokens else None
            self._drafter._last_draft_probs = cut
        return drafts[:, :num_speculative_tokens]


class _SuffixDrafts:
    """Wraps vLLM's drafter of suffix decoding, which gets the tokens of every step in the call that drafts."""

    def __init__(self, drafter) -> None:
        self._drafter, self._propose = drafter, drafter.propose
        self._longest = drafter.num_speculative_tokens

    def propose(self, num_speculative_tokens, *others, **named):
        """Like the drafter's own: up to num_speculative_tokens token ids for each request."""
        if num_speculative_tokens == 0:
            with replaced(self._drafter.suffix_cache, speculate=_no_draft):
                return self._propose(self._longest, *others, **named)
        with replaced(self._drafter, num_speculative_tokens=num_speculative_tokens):
            return self._propose(num_speculative_tokens, *others, **named)


class _NgramDrafts:
    """Wraps vLLM's n-gram look-up on the device, which gets the tokens of every step in the call that drafts."""

    def __init__(self, drafter) -> None:
        self._drafter, self._propose = drafter, drafter.propose

    def propose(self, num_speculative_tokens, *others):
        """Like the drafter's own: (n, num_speculative_tokens) token ids, and how many of them are valid, (n,)."""
        if num_speculative_tokens == 0:
            with replaced(self._drafter, kernel=_no_look_up):
                return self._propose(self._drafter.k, *others)
        drafts, valid = self._propose(self._drafter.k, *others)
        return drafts[:, :num_speculative_tokens], valid.clamp(max=num_speculative_tokens)


class _NoDraft(NamedTuple):
    token_ids: list[int]


def _no_draft(*_, **__) -> _NoDraft:
    return _NoDraft([])


def _no_look_up(num_tokens: torch.Tensor, *_) -> tuple[torch.Tensor, torch.Tensor]:
    size, device = len(num_tokens), num_tokens.device
    return torch.empty(size, 0, dtype=torch.int32, device=device), torch.zeros(size, dtype=torch.int32, device=device)
