"""The parallel head as it is trained: what each position sees, what the loss trains, and what is exported.

tests/turbospec_engine/test_parallel.py holds it against the engine's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from training import heads, peagle
from training.peagle import POSITIONS, ParallelHead

LENGTH = 30
STARTING = torch.tensor([0, 7, LENGTH - POSITIONS])


@pytest.fixture
def head(target: LlamaForCausalLM) -> ParallelHead:
    torch.manual_seed(1)
    return ParallelHead(peagle.head_config(target.config))


def test_a_draft_sees_the_text_up_to_its_start_and_itself(head: ParallelHead, target: LlamaForCausalLM) -> None:
    """Each position's result changes with what it may see, and with nothing else."""
    rotary = LlamaRotaryEmbedding(target.config)
    embedded, masked = torch.randn(1, LENGTH, 32), torch.randn(32)
    features = torch.randn(1, LENGTH, 96)

    @torch.inference_mode()
    def run(starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = head(features, embedded, masked, starts, rotary)[0]
        return hidden[:LENGTH], hidden[LENGTH:].unflatten(0, (len(starts), POSITIONS - 1))

    text, drafts = run(STARTING)
    for index in range(len(STARTING)):  # other drafts change nothing
        alone = run(STARTING[index : index + 1])
        torch.testing.assert_close(alone[0], text)
        torch.testing.assert_close(alone[1][0], drafts[index])
    features[0, 8] += 1.0
    changed_text, changed = run(STARTING)
    torch.testing.assert_close(changed_text[:8], text[:8])
    torch.testing.assert_close(changed[:2], drafts[:2])
    assert ((changed_text[8:] - text[8:]).abs().amax(-1) > 1e-4).all()
    assert ((changed[2] - drafts[2]).abs().amax(-1) > 1e-4).all()


def test_the_loss_trains_every_weight_at_every_position(head: ParallelHead, target: LlamaForCausalLM) -> None:
    tokens = torch.randint(0, 60, (2, LENGTH + 1))
    loss, accepted = peagle.loss_on(head, target, LlamaRotaryEmbedding(target.config), tokens, STARTING)
    loss.backward()
    assert torch.isfinite(loss)
    assert len(accepted) == POSITIONS
    assert accepted == sorted(accepted, reverse=True)
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in head.parameters())


def test_the_export_is_what_vllm_loads(
    head: ParallelHead, target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "write_tokenizer", lambda *_: None)
    peagle.export(head, target, tmp_path, tmp_path / "head")
    weights = load_file(tmp_path / "head" / "model.safetensors")
    assert weights["mask_hidden"].shape == (1, 96)
    assert {"fc.weight", "layers.0.hidden_norm.weight", "layers.1.self_attn.q_proj.weight", "norm.weight"} <= set(
        weights
    )
    assert not [name for name in weights if "embed_tokens" in name or "lm_head" in name]
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["ptd_token_id"], config["num_hidden_layers"]) == (peagle.MASK_TOKEN, 2)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
