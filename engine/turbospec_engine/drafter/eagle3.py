"""Drafting with an EAGLE-3 head on the target's hidden states."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from turbospec import UserError
from turbospec.interface import IntArray
from turbospec_engine.attention import PagedAttention, RaggedBatch
from turbospec_engine.drafter.sequential import SequentialDrafter
from turbospec_engine.eagle3_head import Eagle3Head
from turbospec_engine.kv_store import KVStore
from turbospec_engine.transfer import on_device


class Eagle3Drafter(SequentialDrafter):
    """Drafts with a head that reads the target's hidden states of every token, and its own of draft tokens.

    Position i holds the target's state of token i and the embedding of token i + 1, so that the first pass ends at the
    newest token, whose state the target has not computed. What later passes write is of the head's own states: once
    the target has computed the accepted tokens, the next draft writes them again from the target's.

    Args:
        head: the head.
        target: the model whose embedding it reads.
        store: the head's KV cache.
        num_blocks: blocks of the target's KV cache.
        block_size: tokens in a block of the target.
        max_draft: longest draft of the engine.
        max_pass_tokens: most tokens of a pass that catches up.

    Raises:
        UserError: the head's logits are not finite.
    """

    def __init__(
        self,
        head: Eagle3Head,
        target: PreTrainedModel,
        store: KVStore,
        *,
        num_blocks: int,
        block_size: int,
        max_draft: int,
        max_pass_tokens: int,
    ) -> None:
        # After a draft that was accepted: its tokens and the target's own.
        super().__init__(skipped=1, ordinary_tokens=1 + max_draft, keeps_drafts=False, max_pass_tokens=max_pass_tokens)
        self.head = head
        self.embed = target.get_input_embeddings()
        self.store = store
        self._target_states = self.hidden_states = head.hidden_states(target, num_blocks, block_size)
        self.max_model_len = head.config.max_position_embeddings
        self._last: torch.Tensor
        """(rows, width) the head's state of each row's last token in the pass before."""
        self._check_finite()

    def _logits(
        self, tokens: IntArray, batch: RaggedBatch, target_tables: IntArray, continued: IntArray | None
    ) -> torch.Tensor:
        device = self.head.device
        paged = PagedAttention(batch, self.store, device)
        if continued is None:
            hidden = self.head.fc(self._target_states.read(batch, target_tables))
        else:
            hidden = self._last[on_device(continued, device)]
        embedded = self.embed(on_device(tokens, device))
        hidden = self.head(embedded, hidden, on_device(batch.positions, device), paged)
        self._last = hidden[on_device(np.cumsum(batch.query_lens) - 1, device)]
        return self.head.logits(self._last)

    @torch.inference_mode()
    def _check_finite(self) -> None:
        one, first = np.ones(1, np.int64), np.zeros((1, 1), np.int64)
        # Not token 0, which may be padding, with an embedding of zeros.
        token = one * (self.head.config.vocab_size - 1)
        logits = self._logits(token, RaggedBatch(one, one, first), first, None)
        if not torch.isfinite(logits[:, self.head.token_ids]).all():
            raise UserError(
                f"{self.head.name_or_path}: the EAGLE-3 head gives no finite logits in {self.head.dtype}; use another "
                "dtype or checkpoint"
            )
