"""Train an EAGLE-3 head for the target, in the layout that serving engines read, and write an untrained copy.

The head is one decoder layer (Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", 2025). At position t it reads three hidden states of the target there and the embedding of the
token that follows, and predicts the token after that. It predicts further tokens from its own output in place of the
target's hidden states. The training-time test trains this: `STEPS` successive predictions, each of which attends to the
target's positions up to its start and to the head's own positions after it.

    python -m training.eagle3 --target .cache/pair/target/final --generated .cache/pair/generated-both
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from training.batches import Windows
from training.corpus import CACHE
from training.heads import bf16_weights, learn, origin, read_target, write_head
from training.loop import Budget, Run
from training.tokenizer import stream
from training.train import with_generated
from turbospec.errors import exit_on_user_error

DRAFT_VOCABULARY = 2048
STEPS = 4
STEP_WEIGHT = 0.8
"""Weight of each further prediction's loss, relative to the one before it."""
ADAMW_RATE = 1.5e-3


def target_layers(config: LlamaConfig) -> tuple[int, int, int]:
    """Layers whose outputs the head reads: an early, a middle and a late one; vLLM's default."""
    layers = config.num_hidden_layers
    return 2, layers // 2, layers - 3


class Attention(nn.Module):
    """Attention over inputs of `input_width`: of a head's first layer, the embedding and the hidden state together."""

    def __init__(self, config: LlamaConfig, input_width: int) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.head_dim = width // self.heads
        self.q_proj = nn.Linear(input_width, width, bias=False)
        self.k_proj = nn.Linear(input_width, width, bias=False)
        self.v_proj = nn.Linear(input_width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def project(self, inputs: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (batch, heads, length, head_dim)."""
        query, key, value = (
            projection(inputs).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *rotation)
        return query, key, value


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, 2 * config.hidden_size)
        self.mlp = LlamaMLP(config)


class Eagle3Head(nn.Module):
    """The head's weights under their public names."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, DRAFT_VOCABULARY, bias=False)

    def predictions(self, features: Tensor, embeddings: Tensor, rotary: LlamaRotaryEmbedding) -> Iterator[Tensor]:
        """Logits of `STEPS` successive predictions from each start.

        Args:
            features: (batch, length, 3 · width) hidden states of the target.
            embeddings: (batch, length + STEPS - 1, width) of the tokens that follow each position.

        Yields:
            (batch, length, draft vocabulary): at prediction s, start t is for the token at t + 2 + s.
        """
        length = features.shape[1]
        layer, attention = self.midlayer, self.midlayer.self_attn
        hidden = self.fc(features)
        causal = torch.full((length, length), -torch.inf).triu(1)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for step in range(STEPS):
            positions = torch.arange(step, step + length)[None]
            embedded = layer.input_layernorm(embeddings[:, step : step + length])
            both = torch.cat([embedded, layer.hidden_norm(hidden)], dim=-1)
            query, key, value = attention.project(both, rotary(hidden, positions))
            keys.append(key)
            values.append(value)
            # The target's positions up to the start, then one position of the head's own for each prediction since.
            scores = query @ keys[0].transpose(-1, -2) * attention.head_dim**-0.5 + causal
            own = [(query * since).sum(-1, keepdim=True) * attention.head_dim**-0.5 for since in keys[1:]]
            weights = torch.cat([scores, *own], dim=-1).softmax(-1)
            seen = weights[..., :length] @ values[0]
            for place, since in enumerate(values[1:]):
                seen = seen + weights[..., length + place, None] * since
            hidden = hidden + attention.o_proj(seen.transpose(1, 2).flatten(2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            yield self.lm_head(self.norm(hidden))


def draft_vocabulary(streams: list[np.ndarray]) -> np.ndarray:
    """(DRAFT_VOCABULARY,) ids of the most frequent tokens, in order of id."""
    counts = np.bincount(np.concatenate(streams).astype(np.int64))
    return np.sort(np.argsort(-counts, kind="stable")[:DRAFT_VOCABULARY])


def loss_on(
    head: Eagle3Head, target: LlamaForCausalLM, rotary: LlamaRotaryEmbedding, tokens: Tensor, drafted: Tensor
) -> tuple[Tensor, list[float]]:
    """Loss in nats per token, and how often each prediction is the target's most likely token.

    Args:
        tokens: (batch, length).
        drafted: ids of the draft vocabulary.
    """
    features, logits = read_target(target, tokens, target_layers(target.config))
    embedded = target.get_input_embeddings()(tokens).detach().float()
    first_choice, wanted = logits.argmax(-1), logits[..., drafted].softmax(-1)
    starts = tokens.shape[1] - 1 - STEPS
    loss, agreement = torch.zeros(()), []
    with torch.autocast("cpu", torch.bfloat16):
        for step, guessed in enumerate(head.predictions(features[:, :starts], embedded[:, 1:], rotary)):
            goal = slice(step + 1, step + 1 + starts)
            flat = guessed.float().flatten(0, 1)
            loss = loss + STEP_WEIGHT**step * F.cross_entropy(flat, wanted[:, goal].flatten(0, 1))
            agreement.append(float((drafted[flat.argmax(-1)] == first_choice[:, goal].flatten()).float().mean()))
    return loss / sum(STEP_WEIGHT**step for step in range(STEPS)), agreement


def export(head: Eagle3Head, target: LlamaForCausalLM, drafted: np.ndarray, tokenizer: Path, folder: Path) -> None:
    """Write the head in the public layout: bf16 weights, `d2t` as offsets, `t2d` as a mask."""
    weights = bf16_weights(head)
    chosen = torch.from_numpy(drafted)
    weights["d2t"] = chosen - torch.arange(DRAFT_VOCABULARY)
    weights["t2d"] = torch.zeros(target.config.vocab_size, dtype=torch.bool).scatter(0, chosen, True)
    config = target.config.to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(target_layers(target.config)),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(target_layers(target.config))},
    }
    write_head(weights, config, tokenizer, folder)


def fresh_head(target: LlamaForCausalLM, drafted: np.ndarray, seed: int) -> Eagle3Head:
    """Seeded random weights, but for an output that begins as the target's."""
    torch.manual_seed(seed)
    head = Eagle3Head(target.config)
    with torch.no_grad():
        head.lm_head.weight.copy_(target.get_parameter("model.embed_tokens.weight")[torch.from_numpy(drafted)].float())
    return head


def main(
    target: Annotated[Path, typer.Option(help="Trained target checkpoint.")],
    generated: Annotated[Path, typer.Option(help="Mix in the .npy streams of this folder.")],
    out: Annotated[Path, typer.Option(help="Folder that receives eagle3 and eagle3-untrained.")] = Path("models"),
    tokens: Annotated[int, typer.Option(help="Token budget, in tokens seen.")] = 4_000_000,
    deadline_minutes: Annotated[float | None, typer.Option(help="Anneal and stop by elapsed time as well.")] = None,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens per window.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the data order.")] = 7,
    cache: Path = CACHE,
) -> None:
    """Train the head and write both checkpoints; running it again goes on from its state in the cache."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    text = [stream("train", "code", cache), stream("train", "prose", cache)]
    chosen = draft_vocabulary(text)
    drafted = torch.from_numpy(chosen)
    windows = Windows(with_generated(text, generated), length, batch, seed)
    rotary = LlamaRotaryEmbedding(model.config)
    head = fresh_head(model, chosen, seed)
    export(head, model, chosen, cache / "tokenizer", out / "eagle3-untrained")
    budget = Budget(tokens, None if deadline_minutes is None else 60.0 * deadline_minutes)
    state = cache / "eagle3-state.pt"
    source = origin(target, seed=seed, batch=batch, length=length)
    run = Run(head, "lm_head", ADAMW_RATE, budget, batch * length, state, source)

    def loss_at(step: int) -> tuple[Tensor, list[float]]:
        return loss_on(head, model, rotary, windows.at(step), drafted)

    learn(run, tokens, "agreement", loss_at)
    export(head, model, chosen, cache / "tokenizer", out / "eagle3")


if __name__ == "__main__":
    with exit_on_user_error():
        typer.run(main)
