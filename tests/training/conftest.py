"""What tests of heads share."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    """A target with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()
