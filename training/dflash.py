"""Train a block drafter for the target, in the layout of DFlash.

It drafts a block of tokens in one pass (Chen et al., "DFlash: Block Diffusion for Flash Speculative Decoding", 2026).
The block is the newest token and a mask token for each draft token. Its positions attend to each other in both
directions, and to the tokens before it: keys and values of these are made from hidden states of the target, anew in
each layer. The mask at a position is for the token there. One pass over a window of text trains many blocks.

    python -m training.dflash --target models/target --generated .cache/pair/generated
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from transformers import LlamaForCausalLM, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, apply_rotary_pos_emb

from training.architectures import PADDING_ID
from training.batches import Windows
from training.corpus import CACHE
from training.heads import (
    attend_drafts,
    bf16_weights,
    draft_losses,
    learn,
    origin,
    read_target,
    starts_at,
    write_head,
)
from training.loop import Budget, Run
from training.tokenizer import stream
from training.train import with_generated
from turbospec.errors import exit_on_user_error

LAYERS = 4
KV_HEADS = 2
INTERMEDIATE = 256
TARGET_LAYERS = (1, 3, 4, 6)
"""Layers of the target whose outputs the head reads."""
POSITIONS = 8
"""Draft tokens of a block in training."""
STARTS = 48
"""Blocks trained in each window of text."""
POSITION_WEIGHT = 0.8
"""Weight of each further position's loss, relative to the one before it."""
MASK_TOKEN = PADDING_ID
ADAMW_RATE = 1.5e-3


class Attention(nn.Module):
    """Attention of blocks to the text before them and to themselves."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        kv_heads = config.num_key_value_heads or config.num_attention_heads
        self.q_proj = nn.Linear(width, config.num_attention_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, width, bias=False)
        self.q_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(
        self,
        blocks: Tensor,
        block_rotation: tuple[Tensor, Tensor],
        text: Tensor,
        text_rotation: tuple[Tensor, Tensor],
        starts: Tensor,
    ) -> Tensor:
        """(batch, drafts · block size, width), as `blocks`; `text` is (batch, length, width)."""

        def heads(projected: Tensor) -> Tensor:
            return projected.unflatten(-1, (-1, self.head_dim))

        query, key = self.q_norm(heads(self.q_proj(blocks))), self.k_norm(heads(self.k_proj(blocks)))
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *block_rotation)
        text_key = self.k_norm(heads(self.k_proj(text))).transpose(1, 2)
        text_key, _ = apply_rotary_pos_emb(text_key, text_key, *text_rotation)
        value, text_value = (heads(self.v_proj(inputs)).transpose(1, 2) for inputs in (blocks, text))
        size = blocks.shape[1] // len(starts)
        seen = attend_drafts(query, key, value, text_key, text_value, starts, torch.zeros(size, size))
        return self.o_proj(seen.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Qwen3MLP(config)


class BlockHead(nn.Module):
    """The head's weights under their public names. Embedding and output layer are the target's."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.block_size: int = config.block_size
        # The layers are named by their output, which enters the next one.
        self.entering = tuple(layer + 1 for layer in config.dflash_config["target_layer_ids"])
        self.fc = nn.Linear(len(self.entering) * width, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(width, config.rms_norm_eps)

    def forward(
        self, features: Tensor, newest: Tensor, masked: Tensor, starts: Tensor, rotary: LlamaRotaryEmbedding
    ) -> Tensor:
        """Normalised hidden states of the mask positions, from which the target's output layer makes logits.

        Args:
            features: (batch, length, layers · width) hidden states of the target.
            newest: (batch, drafts, width) embeddings of the tokens that blocks begin with, those after their starts.
            masked: (width,) embedding of the mask token.
            starts: (drafts,) last positions of the text that the blocks see.

        Returns:
            (batch, drafts, block size - 1, width); the d-th mask of a block, from 0, is for the token at start + 2 + d.
        """
        batch, drafts, width = newest.shape
        text = self.hidden_norm(self.fc(features))
        masks = masked.expand(batch, drafts, self.block_size - 1, width)
        blocks = torch.cat([newest[:, :, None], masks], dim=2).flatten(1, 2)
        places = (starts[:, None] + 1 + torch.arange(self.block_size)).flatten()
        rotation, text_rotation = (rotary(blocks, each[None]) for each in (places, torch.arange(features.shape[1])))
        for layer in cast("list[Layer]", self.layers):
            blocks = blocks + layer.self_attn(layer.input_layernorm(blocks), rotation, text, text_rotation, starts)
            blocks = blocks + layer.mlp(layer.post_attention_layernorm(blocks))
        return self.norm(blocks.unflatten(1, (drafts, self.block_size))[:, :, 1:])


def loss_on(
    head: BlockHead, target: LlamaForCausalLM, rotary: LlamaRotaryEmbedding, tokens: Tensor, starts: Tensor
) -> tuple[Tensor, list[float]]:
    """Loss in nats per token, and how often each position, and all before it, are the target's most likely tokens.

    Args:
        tokens: (batch, length + 1).
        starts: (drafts,), each at most length - POSITIONS.
    """
    output = target.get_parameter("model.embed_tokens.weight").detach().float()
    features, logits = read_target(target, tokens, head.entering)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = head(features[:, :-1], output[tokens[:, starts + 1]], output[MASK_TOKEN], starts, rotary)
        guessed = F.linear(hidden, output).float()
    losses, accepted = draft_losses(guessed, logits[:, 1:], starts)
    weights = POSITION_WEIGHT ** torch.arange(POSITIONS)
    return (losses * weights).sum() / weights.sum(), accepted


def head_config(target: LlamaForCausalLM) -> Qwen3Config:
    """The shape of a head for a target, with what vLLM reads."""
    theirs = target.config
    fields = {
        "architectures": ["DFlashDraftModel"],
        "vocab_size": theirs.vocab_size,
        "hidden_size": theirs.hidden_size,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": theirs.num_attention_heads,
        "num_key_value_heads": KV_HEADS,
        "head_dim": theirs.head_dim,
        "max_position_embeddings": theirs.max_position_embeddings,
        "rms_norm_eps": theirs.rms_norm_eps,
        "rope_parameters": theirs.rope_parameters,
        "tie_word_embeddings": True,
        "bos_token_id": theirs.bos_token_id,
        "eos_token_id": theirs.eos_token_id,
        "pad_token_id": theirs.pad_token_id,
        "dtype": "bfloat16",
        "block_size": 1 + POSITIONS,
        "num_target_layers": theirs.num_hidden_layers,
        "dflash_config": {"mask_token_id": MASK_TOKEN, "target_layer_ids": list(TARGET_LAYERS)},
    }
    return Qwen3Config.from_dict(fields)


def export(head: BlockHead, target: LlamaForCausalLM, tokenizer: Path, folder: Path) -> None:
    """Write the head in the public layout: bf16 weights, no embedding and no output layer."""
    write_head(bf16_weights(head), head_config(target).to_dict(), tokenizer, folder)


def fresh_head(target: LlamaForCausalLM, seed: int) -> BlockHead:
    """Seeded random weights, but for a last norm that begins as the target's, because the output layer is its."""
    torch.manual_seed(seed)
    head = BlockHead(head_config(target))
    with torch.no_grad():
        head.norm.weight.copy_(target.get_parameter("model.norm.weight").float())
    return head


def main(
    target: Annotated[Path, typer.Option(help="Trained target checkpoint.")],
    generated: Annotated[Path | None, typer.Option(help="Mix in the .npy streams of this folder.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that receives dflash.")] = Path("models"),
    tokens: Annotated[int, typer.Option(help="Token budget, in tokens seen.")] = 4_000_000,
    deadline_minutes: Annotated[float | None, typer.Option(help="Anneal and stop by elapsed time as well.")] = None,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = 4,
    length: Annotated[int, typer.Option(help="Tokens per window.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the data order.")] = 7,
    cache: Path = CACHE,
) -> None:
    """Train the head and write its checkpoint; running it again goes on from its state in the cache."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    text = [stream("train", "code", cache), stream("train", "prose", cache)]
    windows = Windows(text if generated is None else with_generated(text, generated), length, batch, seed)
    rotary = LlamaRotaryEmbedding(model.config)
    head = fresh_head(model, seed)
    budget = Budget(tokens, None if deadline_minutes is None else 60.0 * deadline_minutes)
    state = cache / "dflash-state.pt"
    source = origin(target, seed=seed, batch=batch, length=length)
    run = Run(head, "embed_tokens", ADAMW_RATE, budget, batch * length, state, source)

    def loss_at(step: int) -> tuple[Tensor, list[float]]:
        return loss_on(head, model, rotary, windows.at(step), starts_at(step, STARTS, length - POSITIONS, seed))

    learn(run, tokens, "accepted", loss_at)
    export(head, model, cache / "tokenizer", out / "dflash")


if __name__ == "__main__":
    with exit_on_user_error():
        typer.run(main)
