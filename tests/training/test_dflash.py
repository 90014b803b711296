"""The block drafter as it is trained: what each block sees, what the loss trains, and what is exported.

tests/turbospec_engine/test_dflash.py holds it against the engine's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from training import dflash, heads
from training.dflash import POSITIONS, BlockHead

LENGTH = 30
STARTING = torch.tensor([0, 7, LENGTH - POSITIONS])


@pytest.fixture
def head(target: LlamaForCausalLM) -> BlockHead:
    return dflash.fresh_head(target, seed=1)


def test_a_block_sees_the_text_up_to_its_start_and_all_of_itself(head: BlockHead, target: LlamaForCausalLM) -> None:
    """Each block's result changes with what it may see, and with nothing else."""
    rotary = LlamaRotaryEmbedding(target.config)
    features, newest, masked = torch.randn(1, LENGTH, 128), torch.randn(1, len(STARTING), 32), torch.randn(32)

    @torch.inference_mode()
    def run(*blocks: int) -> torch.Tensor:
        chosen = list(blocks)
        return head(features, newest[:, chosen], masked, STARTING[chosen], rotary)[0]

    drafts = run(0, 1, 2)
    assert drafts.shape == (3, POSITIONS, 32)
    for index in range(len(STARTING)):  # other blocks change nothing
        torch.testing.assert_close(run(index)[0], drafts[index])
    features[0, 8] += 1.0
    changed = run(0, 1, 2)
    torch.testing.assert_close(changed[:2], drafts[:2])
    assert ((changed[2] - drafts[2]).abs().amax(-1) > 1e-4).all()
    newest[0, 0] += 1.0
    again = run(0, 1, 2)
    torch.testing.assert_close(again[1:], changed[1:])
    assert ((again[0] - changed[0]).abs().amax(-1) > 1e-4).all()
    head.block_size -= 1  # a block with a mask less: all of its positions change
    shorter = run(0, 1, 2)
    assert ((shorter - again[:, :-1]).abs().amax(-1) > 1e-5).all()


def test_the_loss_trains_every_weight_at_every_position(head: BlockHead, target: LlamaForCausalLM) -> None:
    tokens = torch.randint(0, 60, (2, LENGTH + 1))
    loss, accepted = dflash.loss_on(head, target, LlamaRotaryEmbedding(target.config), tokens, STARTING)
    loss.backward()
    assert torch.isfinite(loss)
    assert len(accepted) == POSITIONS
    assert accepted == sorted(accepted, reverse=True)
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in head.parameters())


def test_the_masks_of_a_block_are_for_the_tokens_at_their_places(
    head: BlockHead, target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's own hidden states in place of the head's have no loss but the target's entropy."""
    tokens = torch.randint(0, 60, (1, LENGTH + 1))
    with torch.no_grad():
        read = target(input_ids=tokens, output_hidden_states=True)
    places = STARTING[:, None] + torch.arange(POSITIONS)
    # The state of the token before a mask's place makes the logits of the token there.
    monkeypatch.setattr(head, "forward", lambda *_: read.hidden_states[-1][:, places + 1])
    loss, accepted = dflash.loss_on(head, target, LlamaRotaryEmbedding(target.config), tokens, STARTING)
    entropy = -(read.logits.softmax(-1) * read.logits.log_softmax(-1)).sum(-1)[0]
    weights = dflash.POSITION_WEIGHT ** torch.arange(POSITIONS)
    expected = (entropy[places + 1].mean(0) * weights).sum() / weights.sum()
    torch.testing.assert_close(loss, expected, atol=1e-2, rtol=1e-2)
    assert min(accepted) > 0.5  # of bfloat16


def test_the_export_is_what_vllm_loads(
    head: BlockHead, target: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "write_tokenizer", lambda *_: None)
    dflash.export(head, target, tmp_path, tmp_path / "head")
    weights = load_file(tmp_path / "head" / "model.safetensors")
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.3.self_attn.q_norm.weight"} <= set(weights)
    assert not [name for name in weights if "embed_tokens" in name or "lm_head" in name]
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert (config["model_type"], config["num_hidden_layers"], config["block_size"]) == ("qwen3", 4, 1 + POSITIONS)
    assert config["dflash_config"] == {"mask_token_id": dflash.MASK_TOKEN, "target_layer_ids": [1, 3, 4, 6]}
