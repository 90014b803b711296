"""Shapes of the two models. Both have the Llama architecture, which every loader supports."""

from __future__ import annotations

from typing import Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.tokenizer import CONTEXT, END_OF_TEXT_ID, VOCABULARY

Role = Literal["target", "drafter"]
HEAD_DIMENSION = 64
PADDING_ID = 1
ROPE_BASE = 10_000.0


def _llama(hidden: int, intermediate: int, layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_DIMENSION,
        num_key_value_heads=hidden // HEAD_DIMENSION,
        head_dim=HEAD_DIMENSION,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=PADDING_ID,
        initializer_range=0.02,
    )


def configuration(role: Role) -> LlamaConfig:
    """Shape of a role: the target has 8 layers of width 256, the drafter 1 layer of width 192."""
    return _llama(256, 688, 8) if role == "target" else _llama(192, 768, 1)


def fresh_model(role: Role, seed: int) -> LlamaForCausalLM:
    """A float32 model with seeded random weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(configuration(role))


def drafter_for(target: LlamaForCausalLM, seed: int) -> LlamaForCausalLM:
    """A fresh drafter whose embedding is the target's, projected onto its leading principal directions.

    Most of a small drafter's weights are its embedding, and most rows are rare tokens: starting from what the
    target has learnt about them saves most of the drafter's training.
    """
    drafter = fresh_model("drafter", seed)
    known = target.get_parameter("model.embed_tokens.weight").detach().float()
    directions = torch.linalg.svd(known, full_matrices=False).Vh[: drafter.config.hidden_size]
    with torch.no_grad():
        drafter.get_parameter("model.embed_tokens.weight").copy_(known @ directions.T)
    return drafter
