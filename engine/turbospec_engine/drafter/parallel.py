"""Drafting with a parallel head on the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from turbospec.interface import IntArray
from turbospec_engine.attention import PagedAttention, RaggedBatch
from turbospec_engine.drafter.catch_up import tokens_to_read
from turbospec_engine.drafter.one_pass import OnePassDrafter, places_in_rows
from turbospec_engine.parallel_head import ParallelHead
from turbospec_engine.request import Request
from turbospec_engine.runner import block_table
from turbospec_engine.transfer import on_device


class ParallelDrafter(OnePassDrafter[ParallelHead]):
    """Drafts with a head whose mask tokens follow the text.

    As for an EAGLE-3 head, position i holds the target's state of token i and the embedding of token i + 1. The pass
    ends with K - 1 mask positions for a draft of K tokens.

    Arguments and errors are those of `OnePassDrafter`.
    """

    def _draft_logits(self, drafting: Sequence[Request], planned: IntArray) -> tuple[torch.Tensor, int]:
        context_lens = np.array([request.num_tokens for request in drafting]) - 2 + planned
        query_lens = context_lens - [request.draft_computed for request in drafting]
        masks = [np.full(length - 1, self.head.mask_token) for length in planned.tolist()]
        tokens = np.concatenate(
            [
                part
                for request, masked in zip(drafting, masks, strict=True)
                for part in (request.tokens[request.draft_computed + 1 : request.num_tokens], masked)
            ]
        )
        batch = RaggedBatch(query_lens, context_lens, block_table([r.draft_block_ids for r in drafting]))
        target_tables = block_table([request.block_ids for request in drafting])
        depths = places_in_rows(planned)
        last = np.repeat(batch.query_starts + query_lens - planned, planned) + depths
        return self._logits(tokens, batch, target_tables, last, last[depths > 0]), int(context_lens.sum())

    def _compute(self, requests: Sequence[Request], batch: RaggedBatch, target_tables: IntArray) -> None:
        tokens = tokens_to_read(requests, batch.query_lens, skipped=1)
        none = np.zeros(0, np.int64)
        self._logits(tokens, batch, target_tables, none, none)

    def _logits(
        self, tokens: IntArray, batch: RaggedBatch, target_tables: IntArray, logits_at: IntArray, masked: IntArray
    ) -> torch.Tensor:
        """Run the pass.

        Args:
            tokens: (t,) the tokens of all rows, end to end.
            batch: the rows.
            target_tables: (rows, blocks) ids of the rows' blocks in the target's KV cache.
            logits_at: (m,) indices of tokens.
            masked: indices of the tokens that are mask tokens.

        Returns:
            (m, vocabulary) logits in float32 after the tokens at `logits_at`.
        """
        head, device = self.head, self.head.device
        paged = PagedAttention(batch, self.store, device)
        states = self.hidden_states.read(batch, target_tables)
        states[on_device(masked, device)] = head.mask_hidden
        embedded = self.embed(on_device(tokens, device))
        hidden = head(embedded, head.fc(states), on_device(batch.positions, device), paged)
        return self._logits_of(hidden, logits_at)

    def _trials(self, token: int) -> Iterator[torch.Tensor]:
        one, first = np.ones(1, np.int64), np.zeros((1, 1), np.int64)
        for masked in ((one - 1)[:0], one - 1):
            yield self._logits(one * token, RaggedBatch(one, one, first), first, one - 1, masked)
