"""Drafting with a small model of the target's vocabulary."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from turbospec.interface import IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.drafter.sequential import SequentialDrafter
from turbospec_engine.kv_store import KVStore
from turbospec_engine.runner import ModelRunner
from turbospec_engine.transfer import on_device

ORDINARY_TOKENS = 2
"""The target's own token, and the last draft token if it was accepted."""


class DraftModel(SequentialDrafter):
    """Drafts with a causal language model that reads the request's tokens."""

    def __init__(self, model: PreTrainedModel, store: KVStore, target_vocab_size: int, *, max_pass_tokens: int) -> None:
        super().__init__(skipped=0, ordinary_tokens=ORDINARY_TOKENS, keeps_drafts=True, max_pass_tokens=max_pass_tokens)
        self.runner = ModelRunner(model, store)
        self.runner.warm_up()
        self.target_vocab_size = target_vocab_size
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self.max_model_len = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    def _logits(
        self, tokens: IntArray, batch: RaggedBatch, target_tables: IntArray, continued: IntArray | None
    ) -> torch.Tensor:
        # The target's embedding may be padded to more tokens.
        input_ids = on_device(np.minimum(tokens, self.vocab_size - 1), self.runner.device)
        return self._fit(self.runner.forward(input_ids, batch, np.cumsum(batch.query_lens) - 1))

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """Match the target's vocabulary size: checkpoints with one tokenizer may pad their embeddings differently."""
        lacking = self.target_vocab_size - logits.shape[1]
        if lacking <= 0:
            return logits[:, : self.target_vocab_size]
        return torch.nn.functional.pad(logits, (0, lacking), value=-torch.inf)
