"""The head as it is trained against the head as an engine runs it: position by position, with a cache of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from training import eagle3, heads
from training.eagle3 import DRAFT_VOCABULARY, STEPS, Eagle3Head

LENGTH = 6


@pytest.fixture(scope="module")
def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=2200,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    )


def one_position(
    head: Eagle3Head,
    hidden: torch.Tensor,
    embedded: torch.Tensor,
    position: int,
    cache: list[tuple[torch.Tensor, torch.Tensor]],
    rotary: LlamaRotaryEmbedding,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and the hidden state that the next position reads; the cache grows by one."""
    layer, attention = head.midlayer, head.midlayer.self_attn
    both = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(hidden)], dim=-1)
    query, key, value = attention.project(both, rotary(hidden, torch.tensor([[position]])))
    cache.append((key, value))
    keys, values = (torch.cat(parts, dim=2) for parts in zip(*cache, strict=True))
    seen = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    hidden = hidden + attention.o_proj(seen.transpose(1, 2).flatten(2))
    hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return head.lm_head(head.norm(hidden)), hidden


def test_training_practises_what_an_engine_does(config: LlamaConfig) -> None:
    torch.manual_seed(0)
    head, rotary = Eagle3Head(config), LlamaRotaryEmbedding(config)
    features, embeddings = torch.randn(1, LENGTH, 96), torch.randn(1, LENGTH + STEPS - 1, 32)
    with torch.no_grad():
        trained = list(head.predictions(features, embeddings, rotary))
        for start in range(LENGTH):
            cache: list[tuple[torch.Tensor, torch.Tensor]] = []
            for position in range(start + 1):
                of_target = head.fc(features[:, position : position + 1])
                following = embeddings[:, position : position + 1]
                logits, hidden = one_position(head, of_target, following, position, cache, rotary)
            torch.testing.assert_close(logits[:, 0], trained[0][:, start])
            for step in range(1, STEPS):
                following = embeddings[:, start + step : start + step + 1]
                logits, hidden = one_position(head, hidden, following, start + step, cache, rotary)
                torch.testing.assert_close(logits[:, 0], trained[step][:, start])


def test_the_export_maps_its_vocabulary(config: LlamaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "write_tokenizer", lambda *_: None)
    target = LlamaForCausalLM(config)
    drafted = eagle3.draft_vocabulary([np.repeat(np.arange(100, 2200), 2), np.arange(2200)])
    eagle3.export(eagle3.fresh_head(target, drafted, 0), target, drafted, tmp_path, tmp_path / "head")
    weights = load_file(tmp_path / "head" / "model.safetensors")
    ids = torch.arange(DRAFT_VOCABULARY) + weights["d2t"]
    assert ids.tolist() == drafted.tolist()
    assert weights["t2d"].nonzero().flatten().tolist() == drafted.tolist()
    assert weights["lm_head.weight"].shape == (DRAFT_VOCABULARY, 32)
    assert {"fc.weight", "midlayer.self_attn.q_proj.weight", "midlayer.hidden_norm.weight", "norm.weight"} <= set(
        weights
    )


def test_the_loss_counts_what_the_target_would_choose(config: LlamaConfig) -> None:
    """A head whose output is the target's is not there yet, but its loss is finite and every position is judged."""
    torch.manual_seed(0)
    target = LlamaForCausalLM(config).eval()
    drafted = np.arange(DRAFT_VOCABULARY)
    head = eagle3.fresh_head(target, drafted, 0)
    tokens = torch.randint(0, config.vocab_size, (2, 12))
    loss, agreement = eagle3.loss_on(head, target, LlamaRotaryEmbedding(config), tokens, torch.from_numpy(drafted))
    loss.backward()
    assert torch.isfinite(loss)
    assert len(agreement) == STEPS
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in head.parameters())
