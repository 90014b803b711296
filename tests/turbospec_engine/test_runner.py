"""Ordinary architectures give the logits of transformers' own attention; those that would not are refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from turbospec import UserError
from turbospec_engine.attention import ATTENTION, RaggedBatch
from turbospec_engine.runner import ModelRunner, kv_memory

SHAPE = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
BLOCKS = 8


def config_of(architecture: str, **fields: Any) -> PretrainedConfig:
    return CONFIG_MAPPING[architecture](**(SHAPE | fields))


def random_model(config: PretrainedConfig, attention: str) -> Any:
    torch.manual_seed(0)
    # transformers notes the attention in the config that it is given.
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention).eval()


def runner_of(config: PretrainedConfig) -> ModelRunner:
    model = random_model(config, ATTENTION)
    memory = kv_memory(model, BLOCKS, block_size=16)
    return ModelRunner(model, memory.store(memory.shape))


LLAMA_LIKE = {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16}
ORDINARY: dict[str, dict[str, Any]] = {
    "llama": LLAMA_LIKE,
    "mistral": LLAMA_LIKE,
    "qwen2": LLAMA_LIKE,
    "qwen3": LLAMA_LIKE,
    "phi3": LLAMA_LIKE,
    "gemma3_text": LLAMA_LIKE | {"sliding_window": 64},
    "gpt2": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}


@pytest.mark.parametrize("architecture", ORDINARY)
@torch.inference_mode()
def test_ordinary_models_agree_with_plain_attention(architecture: str) -> None:
    """Two requests side by side, each in two chunks."""
    config = config_of(architecture, **ORDINARY[architecture])
    runner, plain = runner_of(config), random_model(config, "eager")
    runner.warm_up()
    texts = torch.randint(3, 100, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = plain(texts, use_cache=False).logits
    # The second request's second chunk is a long row, with tokens before it.
    for began, ends in (((0, 0), (30, 4)), ((30, 4), (40, 39))):
        query_lens = np.subtract(ends, began)
        batch = RaggedBatch(query_lens, np.array(ends), np.array([[1, 2, 3], [4, 5, 6]]))
        tokens = torch.cat([text[first:end] for text, first, end in zip(texts, began, ends, strict=True)])
        logits = runner.forward(tokens, batch, np.cumsum(query_lens) - 1)
        torch.testing.assert_close(logits, expected[[0, 1], np.subtract(ends, 1)], atol=1e-3, rtol=0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "diffllama": (LLAMA_LIKE, "layer 0 of the model calls attention more than once"),
    "doge": (LLAMA_LIKE | {"keep_window_size": 2048}, "a mask of its own"),
    "bart": ({"d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4}, "takes no position_ids"),
    "bert": ({"intermediate_size": 96}, "is not causal"),
    "roberta": ({"intermediate_size": 96}, "is not causal"),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_models_whose_text_would_be_wrong_are_refused(architecture: str) -> None:
    fields, words = REFUSED[architecture]
    runner = runner_of(config_of(architecture, **fields))
    with pytest.raises(UserError, match=words) as refusal:
        runner.warm_up()
    assert "\n" not in str(refusal.value)
    assert "; use " in str(refusal.value)
