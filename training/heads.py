"""What the training of all heads has in common, and of those that draft all their tokens in one pass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from training.export import write_tokenizer
from training.loop import Run, token_progress

SMOOTHING = 0.03
"""Weight of a step in the shown averages."""


def learn(run: Run, tokens: int, shown: str, loss_at: Callable[[int], tuple[Tensor, list[float]]]) -> None:
    """Train to the end of a run, with a progress bar, and say what was reached.

    Args:
        run: the run.
        tokens: its budget.
        shown: what the rates of `loss_at` are.
        loss_at: makes the loss of a step, and a rate for each draft position.
    """
    smoothed: np.ndarray | None = None
    with token_progress() as bar:
        task = bar.add_task(shown, total=tokens // 1000, completed=run.done.tokens // 1000)
        for step in run.steps():
            loss, found = loss_at(step)
            run.learn(loss)
            rates = np.array(found)
            smoothed = rates if smoothed is None else (1 - SMOOTHING) * smoothed + SMOOTHING * rates
            text = " ".join(f"{rate:.2f}" for rate in smoothed)
            bar.update(task, completed=run.done.tokens // 1000, description=f"{shown} {text}")
    typer.echo(f"{run.done.tokens} tokens in {run.done.step} steps")
    if smoothed is not None:
        typer.echo(f"{shown} by position {np.round(smoothed, 3).tolist()}")


@torch.no_grad()
def read_target(target: LlamaForCausalLM, tokens: Tensor, entering: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(batch, length, layers · width) hidden states that enter some layers, side by side, and (batch, length,
    vocabulary) logits, both in float32, for tokens of shape (batch, length)."""
    read = target(input_ids=tokens, output_hidden_states=True, use_cache=False)
    features = torch.cat([read.hidden_states[layer] for layer in entering], dim=-1)
    return features.float(), read.logits.float()


def origin(target: Path, **options: object) -> str:
    """What a head is trained for and from: a digest of the target's weights, and options that change the run."""
    digest = hashlib.sha256()
    for path in sorted(target.glob("*.safetensors")):
        digest.update(path.read_bytes())
    described = {"target": digest.hexdigest()[:16]} | options
    return ", ".join(f"{name} {value}" for name, value in described.items())


def starts_at(step: int, count: int, last: int, seed: int) -> Tensor:
    """(count,) different positions from 0 to `last` that drafts begin at in all windows of a step, in order."""
    draw = np.random.default_rng((seed, step, 1))  # `Windows` draws from (seed, epoch)
    return torch.from_numpy(np.sort(draw.choice(last + 1, count, replace=False)))


def attend_drafts(
    query: Tensor, key: Tensor, value: Tensor, text_key: Tensor, text_value: Tensor, starts: Tensor, own: Tensor
) -> Tensor:
    """Attention of each draft to the text up to its start, that included, and to its own positions.

    Args:
        query: (batch, heads, drafts · positions, head_dim).
        key: as `query`, but of any number of heads that divides the query's.
        value: as `key`.
        text_key: (batch, kv_heads, length, head_dim).
        text_value: as `text_key`.
        starts: (drafts,).
        own: (positions, positions) 0 where a position attends to another of its draft, -inf where it does not.

    Returns:
        As `query`.
    """
    length, shape = text_key.shape[2], (len(starts), len(own))
    group = query.shape[1] // key.shape[1]
    key, value, text_key, text_value = (
        part.repeat_interleave(group, dim=1) if group > 1 else part for part in (key, value, text_key, text_value)
    )
    later = torch.arange(length) > starts.repeat_interleave(shape[1])[:, None]
    of_text = (query @ text_key.transpose(-1, -2)).masked_fill(later, -torch.inf)
    # (batch, heads, drafts, positions, …)
    query, key, value = (part.unflatten(2, shape) for part in (query, key, value))
    scores = query @ key.transpose(-1, -2) + own
    weights = torch.cat([of_text, scores.flatten(2, 3)], dim=-1) * query.shape[-1] ** -0.5
    weights = weights.softmax(-1).to(value.dtype)
    seen = weights[..., :length] @ text_value
    return seen + (weights[..., length:].unflatten(2, shape) @ value).flatten(2, 3)


def draft_losses(guessed: Tensor, logits: Tensor, starts: Tensor) -> tuple[Tensor, list[float]]:
    """Loss of each position in nats per token, and how often it, and all before it, are the target's first choices.

    Args:
        guessed: (batch, drafts, positions, vocabulary) logits of drafts.
        logits: (batch, length, vocabulary) of the target. A draft's first position is for those at its start.
        starts: (drafts,).
    """
    goals = starts[:, None] + torch.arange(guessed.shape[2])
    wanted = logits[:, goals]
    losses = F.cross_entropy(guessed.flatten(0, 2), wanted.softmax(-1).flatten(0, 2), reduction="none")
    accepted = (guessed.argmax(-1) == wanted.argmax(-1)).cumprod(-1).float().mean((0, 1))
    return losses.unflatten(0, guessed.shape[:3]).mean((0, 1)), accepted.tolist()


def bf16_weights(head: nn.Module) -> dict[str, Tensor]:
    """A head's weights by name, as checkpoints have them."""
    return {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in head.state_dict().items()}


def write_head(weights: Mapping[str, Tensor], config: Mapping[str, Any], tokenizer: Path, folder: Path) -> None:
    """Write a head's checkpoint: weights, config and the tokenizer of another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_tokenizer(tokenizer, folder)
