"""Drafting with a DFlash head on the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from turbospec.interface import IntArray
from turbospec_engine.attention import PagedAttention, RaggedBatch
from turbospec_engine.dflash_head import DFlashHead
from turbospec_engine.drafter.catch_up import lacking_tokens, missing_tokens
from turbospec_engine.drafter.one_pass import OnePassDrafter, places_in_rows
from turbospec_engine.request import Request
from turbospec_engine.transfer import on_device


class DFlashDrafter(OnePassDrafter[DFlashHead]):
    """Drafts blocks: the newest token and K mask tokens for a draft of K tokens.

    Position i of the KV cache holds what the head makes of the target's state of token i, computed once. The block's
    own keys and values take the positions after it for one pass.

    Arguments and errors are those of `OnePassDrafter`.
    """

    def _draft_logits(self, drafting: Sequence[Request], planned: IntArray) -> tuple[torch.Tensor, int]:
        known = np.array([request.num_tokens for request in drafting]) - 1
        context, target_tables = lacking_tokens(drafting, missing_tokens(drafting, 1))
        self._add_context(context, target_tables)
        blocks = RaggedBatch(planned + 1, known + planned + 1, context.block_tables, causal=False)
        newest = np.array([request.tokens[request.num_tokens - 1] for request in drafting])
        return self._logits(newest, blocks), int(blocks.context_lens.sum())

    def _compute(self, requests: Sequence[Request], batch: RaggedBatch, target_tables: IntArray) -> None:
        self._add_context(batch, target_tables)

    def _add_context(self, batch: RaggedBatch, target_tables: IntArray) -> None:
        """Store the keys and values of tokens that the target has computed.

        Args:
            batch: the tokens.
            target_tables: (rows, blocks) ids of the rows' blocks in the target's KV cache.
        """
        device = self.head.device
        slots = batch.slots(self.store.block_size, device)
        states = self.hidden_states.read(batch, target_tables)
        context = self.head.context(states, on_device(batch.positions, device))
        for layer, (key, value) in enumerate(context):
            self.store.write(layer, slots, key, value)

    def _logits(self, newest: IntArray, batch: RaggedBatch) -> torch.Tensor:
        """Run the pass over the blocks.

        Args:
            newest: (rows,) the tokens that the blocks begin with.
            batch: the blocks.

        Returns:
            (mask tokens, vocabulary) logits in float32.
        """
        device = self.head.device
        masked = places_in_rows(batch.query_lens) > 0
        tokens = np.full(len(masked), self.head.mask_token)
        tokens[~masked] = newest
        embedded = self.embed(on_device(tokens, device))
        paged = PagedAttention(batch, self.store, device)
        hidden = self.head(embedded, on_device(batch.positions, device), paged)
        return self._logits_of(hidden, np.flatnonzero(masked))

    def _trials(self, token: int) -> Iterator[torch.Tensor]:
        one = np.ones(1, np.int64)
        # A block may hold a single token, and there may be a single block.
        first = np.zeros((1, 3), np.int64)
        self._add_context(RaggedBatch(one, one, first), first)
        yield self._logits(one * token, RaggedBatch(2 * one, 3 * one, first, causal=False))
