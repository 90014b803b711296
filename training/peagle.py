"""Train a parallel head for the target, which drafts all its tokens in one pass, in the layout of P-EAGLE.

The first draft position is that of an EAGLE-3 head: it reads hidden states of the target and the embedding of the
newest token. Each later one reads a learnt state and the embedding of a mask token in their place, so that none waits
for the token before it (Hui et al., "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training", 2026). One pass over a
window of text trains many drafts: after the text come the mask positions of each, which attend to the text up to the
draft's start and to the draft's own positions before them.

    python -m training.peagle --target models/target --generated .cache/pair/generated --init models/eagle3
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import torch
import torch.nn.functional as F
import typer
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from training.architectures import PADDING_ID
from training.batches import Windows
from training.corpus import CACHE
from training.eagle3 import Attention, Layer, target_layers
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

LAYERS = 2
INTERMEDIATE = 320
POSITIONS = 10
"""Draft tokens of one pass in training."""
STARTS = 56
"""Drafts trained in each window of text."""
POSITION_WEIGHT = 0.7
"""Weight of each further position's loss, relative to the one before it."""
MASK_TOKEN = PADDING_ID
ADAMW_RATE = 1.5e-3


class LaterLayer(nn.Module):
    """A layer after the first: an ordinary one of Llama."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, config.hidden_size)
        self.mlp = LlamaMLP(config)


class ParallelHead(nn.Module):
    """The head's weights under their public names. Embedding and output layer are the target's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.mask_hidden = nn.Parameter(0.5 * torch.randn(3 * width))
        self.layers = nn.ModuleList([Layer(config)] + [LaterLayer(config) for _ in range(LAYERS - 1)])
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)

    def forward(
        self, features: Tensor, embedded: Tensor, masked: Tensor, starts: Tensor, rotary: LlamaRotaryEmbedding
    ) -> Tensor:
        """Normalised hidden states, from which the target's output layer makes logits.

        Args:
            features: (batch, length, 3 · width) hidden states of the target.
            embedded: (batch, length, width) of the tokens that follow each position.
            masked: (width,) embedding of the mask token.
            starts: (drafts,) positions of the text that a draft begins at.

        Returns:
            (batch, length + drafts · (POSITIONS - 1), width): of the text, then of each draft's mask positions. That
            of position t of the text is for the token at t + 2, a draft's d-th mask position for that at start + 2 + d.
        """
        batch, length, width = embedded.shape
        depths = torch.arange(1, POSITIONS)
        places = torch.cat([torch.arange(length), (starts[:, None] + depths).flatten()])
        added = len(places) - length
        hidden = torch.cat([self.fc(features), self.fc(self.mask_hidden).expand(batch, added, width)], dim=1)
        embedded = torch.cat([embedded, masked.expand(batch, added, width)], dim=1)
        rotation = rotary(hidden, places[None])
        for layer in cast("list[Layer | LaterLayer]", self.layers):
            inputs = layer.input_layernorm(embedded if isinstance(layer, Layer) else hidden)
            if isinstance(layer, Layer):
                inputs = torch.cat([inputs, layer.hidden_norm(hidden)], dim=-1)
            seen = attend(*layer.self_attn.project(inputs, rotation), length, starts)
            hidden = hidden + layer.self_attn.o_proj(seen.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.norm(hidden)


def attend(query: Tensor, key: Tensor, value: Tensor, length: int, starts: Tensor) -> Tensor:
    """Attention of the text to itself, and of each draft to the text up to its start and to itself, both causal.

    Args:
        query: (batch, heads, length + drafts · (POSITIONS - 1), head_dim), as `ParallelHead.forward` orders them.
        key: as `query`.
        value: as `query`.
        length: of the text.
        starts: (drafts,).
    """
    text_query, text_key, text_value = (part[:, :, :length] for part in (query, key, value))
    query, key, value = (part[:, :, length:] for part in (query, key, value))
    of_text = F.scaled_dot_product_attention(text_query, text_key, text_value, is_causal=True)
    own = torch.full((POSITIONS - 1, POSITIONS - 1), -torch.inf).triu(1)
    return torch.cat([of_text, attend_drafts(query, key, value, text_key, text_value, starts, own)], dim=2)


def loss_on(
    head: ParallelHead, target: LlamaForCausalLM, rotary: LlamaRotaryEmbedding, tokens: Tensor, starts: Tensor
) -> tuple[Tensor, list[float]]:
    """Loss in nats per token, and how often each position, and all before it, are the target's most likely tokens.

    Args:
        tokens: (batch, length + 1).
        starts: (drafts,), each at most length - POSITIONS.
    """
    output = target.get_parameter("model.embed_tokens.weight").detach().float()
    features, logits = read_target(target, tokens, target_layers(target.config))
    logits, embedded = logits[:, 1:], output[tokens[:, 1:]]
    length = tokens.shape[1] - 1
    with torch.autocast("cpu", torch.bfloat16):
        hidden = head(features[:, :-1], embedded, output[MASK_TOKEN], starts, rotary)
        guessed = F.linear(hidden, output).float()
    loss = F.cross_entropy(guessed[:, :length].flatten(0, 1), logits.softmax(-1).flatten(0, 1))
    drafts = torch.cat(
        [guessed[:, starts, None], guessed[:, length:].unflatten(1, (len(starts), POSITIONS - 1))], dim=2
    )
    losses, accepted = draft_losses(drafts, logits, starts)
    weights = POSITION_WEIGHT ** torch.arange(POSITIONS)
    return (loss + (losses * weights)[1:].sum()) / weights.sum(), accepted


def begin_as(head: ParallelHead, folder: Path) -> None:
    """Take over an EAGLE-3 head's weights: its layer, less the units of its MLP that there is no room for.

    The layers after it begin as the identity.
    """
    theirs = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    parts = [theirs[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
    size = parts[0].norm(dim=1) * parts[1].norm(dim=1) * parts[2].norm(dim=0)
    kept = size.argsort(descending=True)[:INTERMEDIATE].sort().values
    for name, part, axis in zip(("gate", "up", "down"), parts, (0, 0, 1), strict=True):
        theirs[f"midlayer.mlp.{name}_proj.weight"] = part.index_select(axis, kept)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name.startswith("layers.0.") or name in ("fc.weight", "norm.weight"):
                parameter.copy_(theirs[name.replace("layers.0.", "midlayer.")])
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()


def head_config(target: LlamaConfig) -> LlamaConfig:
    """The shape of a head for a target."""
    return LlamaConfig.from_dict(target.to_dict() | {"num_hidden_layers": LAYERS, "intermediate_size": INTERMEDIATE})


def export(head: ParallelHead, target: LlamaForCausalLM, tokenizer: Path, folder: Path) -> None:
    """Write the head in the public layout: bf16 weights, no embedding and no output layer."""
    weights = bf16_weights(head)
    weights["mask_hidden"] = weights["mask_hidden"][None]
    config = head_config(target.config).to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": target.config.vocab_size,
        "tie_word_embeddings": True,
        "ptd_token_id": MASK_TOKEN,
        "eagle_aux_hidden_state_layer_ids": list(target_layers(target.config)),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(target_layers(target.config))},
    }
    write_head(weights, config, tokenizer, folder)


def main(
    target: Annotated[Path, typer.Option(help="Trained target checkpoint.")],
    generated: Annotated[Path, typer.Option(help="Mix in the .npy streams of this folder.")],
    init: Annotated[Path | None, typer.Option(help="Start from this EAGLE-3 head, not from random weights.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that receives peagle.")] = Path("models"),
    tokens: Annotated[int, typer.Option(help="Token budget, in tokens seen.")] = 4_000_000,
    deadline_minutes: Annotated[float | None, typer.Option(help="Anneal and stop by elapsed time as well.")] = None,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = 4,
    length: Annotated[int, typer.Option(help="Tokens per window.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the data order.")] = 7,
    cache: Path = CACHE,
) -> None:
    """Train the head and write its checkpoint; running it again goes on from its state in the cache."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    text = [stream("train", "code", cache), stream("train", "prose", cache)]
    windows = Windows(with_generated(text, generated), length, batch, seed)
    rotary = LlamaRotaryEmbedding(model.config)
    torch.manual_seed(seed)
    head = ParallelHead(head_config(model.config))
    if init is not None:
        begin_as(head, init)
    budget = Budget(tokens, None if deadline_minutes is None else 60.0 * deadline_minutes)
    state = cache / "peagle-state.pt"
    source = origin(target, seed=seed, batch=batch, length=length, init=init)
    run = Run(head, "mask_hidden", ADAMW_RATE, budget, batch * length, state, source)

    def loss_at(step: int) -> tuple[Tensor, list[float]]:
        return loss_on(head, model, rotary, windows.at(step), starts_at(step, STARTS, length - POSITIONS, seed))

    learn(run, tokens, "accepted", loss_at)
    export(head, model, cache / "tokenizer", out / "peagle")


if __name__ == "__main__":
    with exit_on_user_error():
        typer.run(main)
