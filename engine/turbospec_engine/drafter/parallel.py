"""Drafting all tokens in one pass, with a parallel head on the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from turbospec import DraftGate, UserError
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.attention import PagedAttention, RaggedBatch
from turbospec_engine.draft import Draft
from turbospec_engine.drafter.choice import choose
from turbospec_engine.kv_store import KVStore
from turbospec_engine.parallel_head import ParallelHead
from turbospec_engine.request import Request
from turbospec_engine.runner import block_table
from turbospec_engine.sampler import SamplingBatch


class ParallelDrafter:
    """Drafts with a head that reads the target's hidden states of every token, and a mask for each draft token.

    As for an EAGLE-3 head, position i holds the target's state of token i and the embedding of token i + 1. The pass
    ends with K - 1 mask positions for a draft of K tokens. What it writes to the KV cache for these is never read
    again: the next draft's pass computes the accepted tokens. Each draft token is drawn from a distribution that does
    not depend on the draft tokens before it.

    Args:
        head: the head.
        target: the model whose embedding and output layer it uses.
        store: the head's KV cache.
        num_blocks: blocks of the target's KV cache.
        block_size: tokens in a block of the target.
        max_draft: longest draft of the engine.

    Raises:
        UserError: the head's logits are not finite.
    """

    parallel = True

    def __init__(
        self,
        head: ParallelHead,
        target: PreTrainedModel,
        store: KVStore,
        *,
        num_blocks: int,
        block_size: int,
        max_draft: int,
    ) -> None:
        self.head = head
        self.embed = target.get_input_embeddings()
        self.output = cast("nn.Module", target.get_output_embeddings())
        self.store = store
        self.hidden_states = head.hidden_states(target, num_blocks, block_size)
        self.max_model_len = head.config.max_position_embeddings
        # After a draft that was accepted: its tokens and the target's own.
        self._ordinary_tokens = 1 + max_draft
        self._check_finite()

    def lag_tokens(self, request: Request) -> int:
        return max(0, request.num_tokens - 1 - request.draft_computed - self._ordinary_tokens)

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        size, longest = len(requests), int(lengths.max())
        rows = np.flatnonzero(lengths)
        drafting, planned = [requests[row] for row in rows.tolist()], lengths[rows]
        known = np.array([request.num_tokens - 1 for request in drafting])
        context_lens = known + planned - 1
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
        # Row and draft position of each draft token, row by row.
        at, depths = np.repeat(rows, planned), np.arange(planned.sum()) - np.repeat(planned.cumsum() - planned, planned)
        last = np.repeat(batch.query_starts + query_lens - planned, planned) + depths
        logits = self._logits(tokens, batch, target_tables, last, last[depths > 0])

        sampling = SamplingBatch.of(requests)
        drawn_index = np.full((size, longest), -1)
        confidence = np.full((size, longest), np.nan)
        draft = Draft(
            tokens=np.zeros((size, longest), np.int64),
            proposed=lengths.copy(),
            drafted=lengths.copy(),
            distribution_index=drawn_index,
            confidence=confidence,
            draft_rows=np.array([len(rows)]),
            context_tokens=int(context_lens.sum()),
            catch_up_tokens=sum(self.lag_tokens(request) for request in drafting),
        )
        draft.tokens[at, depths], confidence[at, depths], draft.distributions = choose(
            logits, sampling, at, draws[at, depths]
        )
        sampled = ~sampling.greedy[at]
        drawn_index[at[sampled], depths[sampled]] = np.arange(np.count_nonzero(sampled))
        for request in drafting:
            request.draft_computed = request.num_tokens - 1
        return draft

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
        states[torch.from_numpy(masked).to(device)] = head.mask_hidden
        embedded = self.embed(torch.from_numpy(tokens).to(device))
        hidden = head(embedded, head.fc(states), torch.from_numpy(batch.positions).to(device), paged)
        return self.output(head.norm(hidden[torch.from_numpy(logits_at).to(device)])).float()

    @torch.inference_mode()
    def _check_finite(self) -> None:
        one, first = np.ones(1, np.int64), np.zeros((1, 1), np.int64)
        # Not token 0, which may be padding, with an embedding of zeros.
        token, at = one * (self.head.config.vocab_size - 1), one - 1
        for masked in (at[:0], at):
            if not torch.isfinite(self._logits(token, RaggedBatch(one, one, first), first, at, masked)).all():
                raise UserError(
                    f"{self.head.name_or_path}: the parallel head gives no finite logits in {self.head.dtype}; use "
                    "another dtype or checkpoint"
                )
