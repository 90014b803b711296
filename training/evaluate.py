"""Measure the shipped models on held-out text: acceptance per position, repetition, loss.

Acceptance is measured along text that the target itself generates from held-out prompts. At temperature 0 the
drafter's chain is replayed exactly as in speculative decoding: draft K tokens, accept the longest agreeing
prefix, append the target's own next token, repeat after it. One teacher-forced pass of the drafter is enough,
because position ``i`` of a chain only counts when all positions before it agreed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.progress import track
from transformers import AutoTokenizer, LlamaForCausalLM

from training.corpus import CACHE
from training.export import DRAFTER, MISMATCHED, TARGET, WEAK
from training.generate import continuations
from training.tokenizer import stream
from turbospec_bench.text_quality import distinct, ends_in_loop

NEW_TOKENS = 96
POSITIONS = 8
DRAFT_LENGTH = 5
TEMPERATURES = (0.0, 0.3, 0.5, 0.7, 1.0)
LOSS_WINDOWS, LOSS_LENGTH = 48, 512
BATCH = 16


def excerpts(path: Path, tokenizer: Any, length: int, count: int) -> torch.Tensor:
    """Prompts of ``length`` tokens with the ``NEW_TOKENS`` that follow in the text, shape ``[count, length + new]``."""
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    total = length + NEW_TOKENS
    rows = [ids[:total] for ids in tokenizer(texts)["input_ids"] if len(ids) >= total]
    return torch.tensor(rows[:count])


def next_logits(model: LlamaForCausalLM, tokens: torch.Tensor, first: int) -> Iterator[torch.Tensor]:
    """Float32 logits that predict ``tokens[:, first:]``, in batches of shape ``[batch, new, vocabulary]``."""
    for rows in tokens.split(BATCH):
        with torch.no_grad():
            yield model(input_ids=rows[:, :-1], use_cache=False).logits[:, first - 1 :].float()


def agreement(drafter: LlamaForCausalLM, tokens: torch.Tensor, first: int) -> np.ndarray:
    """Where the drafter's greedy choice equals the next token, boolean, shape ``[rows, new]``."""
    choices = torch.cat([logits.argmax(-1) for logits in next_logits(drafter, tokens, first)])
    return (choices == tokens[:, first:]).numpy()


def accepted_lengths(agrees: np.ndarray, draft_length: int) -> list[int]:
    """Accepted tokens of every complete draft cycle along each row of ``agrees``."""
    lengths: list[int] = []
    for row in agrees:
        start = 0
        while start + draft_length < len(row):
            chain = row[start : start + draft_length]
            accepted = draft_length if chain.all() else int(chain.argmin())
            lengths.append(accepted)
            start += accepted + 1
    return lengths


def greedy_acceptance(agrees: np.ndarray) -> dict[str, Any]:
    """Conditional acceptance per chain position, and the mean accepted length for K = ``DRAFT_LENGTH``."""
    lengths = np.asarray(accepted_lengths(agrees, POSITIONS))
    reached = [int((lengths >= position).sum()) for position in range(POSITIONS + 1)]
    return {
        "position": [round(b / a, 4) if a else None for a, b in pairwise(reached)],
        "mean_accepted_k5": round(float(np.mean(accepted_lengths(agrees, DRAFT_LENGTH))), 3),
        "every_position_agreement": round(float(agrees.mean()), 4),
        "cycles": len(lengths),
    }


def overlap(drafter: LlamaForCausalLM, target: LlamaForCausalLM, tokens: torch.Tensor, first: int, t: float) -> float:
    """Expected acceptance of one proposal under rejection sampling, ``mean(sum(min(p, q)))`` at temperature ``t``."""
    pairs = zip(next_logits(drafter, tokens, first), next_logits(target, tokens, first), strict=True)
    shares = [torch.minimum((a / t).softmax(-1), (b / t).softmax(-1)).sum(-1) for a, b in pairs]
    return round(float(torch.cat(shares).mean()), 4)


def repetition(texts: torch.Tensor) -> dict[str, Any]:
    """Distinct-1..4, averaged over generations, and the share of generations that end in a loop."""
    rows = texts.tolist()
    figures = {f"distinct_{n}": float(np.mean([distinct(row, n) for row in rows])) for n in range(1, 5)}
    figures["loop_share"] = float(np.mean([ends_in_loop(row) for row in rows]))
    return {name: round(value, 4) for name, value in figures.items()}


def held_out_loss(model: LlamaForCausalLM, tokens: np.ndarray) -> float:
    """Mean nats per token over ``LOSS_WINDOWS`` windows spread evenly over a held-out stream."""
    starts = np.linspace(0, len(tokens) - LOSS_LENGTH - 1, LOSS_WINDOWS).astype(int)
    windows = torch.tensor(np.stack([tokens[start : start + LOSS_LENGTH + 1] for start in starts]).astype(np.int64))
    losses = [
        F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        for rows, logits in zip(windows.split(BATCH), next_logits(model, windows, 1), strict=True)
    ]
    return round(float(torch.stack(losses).mean()), 4)


def main(
    models: Annotated[Path, typer.Option(help="Folder with the four checkpoints.")] = Path("models"),
    workloads: Annotated[Path, typer.Option(help="Folder with code.jsonl and prose.jsonl.")] = Path("workloads"),
    count: Annotated[int, typer.Option(help="Prompts per kind of text.")] = 96,
    prompt_length: Annotated[int, typer.Option(help="Prompt length in tokens.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the sampled generations.")] = 11,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("models/evaluation.json"),
    cache: Path = CACHE,
) -> None:
    """Evaluate every checkpoint under MODELS and write one JSON file."""
    tokenizer = AutoTokenizer.from_pretrained(models / TARGET)
    loaded = {
        name: LlamaForCausalLM.from_pretrained(models / name, dtype=torch.bfloat16).eval()
        for name in (TARGET, DRAFTER, WEAK, MISMATCHED)
    }
    target = loaded[TARGET]
    result: dict[str, Any] = {
        "prompts_per_kind": count,
        "prompt_tokens": prompt_length,
        "new_tokens": NEW_TOKENS,
        "draft_length": DRAFT_LENGTH,
        "seed": seed,
        "kinds": {},
    }
    for kind in ("code", "prose"):
        real = excerpts(workloads / f"{kind}.jsonl", tokenizer, prompt_length, count)
        starts = real[:, :prompt_length]
        part: dict[str, Any] = {"text": {"held_out": repetition(real[:, prompt_length:])}}
        part["drafters"] = {name: {} for name in loaded if name != TARGET}
        part["heldout_loss"] = {
            name: held_out_loss(model, stream("heldout", kind, cache)) for name, model in loaded.items()
        }
        for temperature in track(TEMPERATURES, description=f"{kind}: temperatures"):
            tokens = continuations(target, starts, NEW_TOKENS, temperature, seed)
            looping = np.asarray([ends_in_loop(row) for row in tokens[:, prompt_length:].tolist()])
            part["text"][f"temperature_{temperature}"] = repetition(tokens[:, prompt_length:])
            for name, figures in part["drafters"].items():
                if temperature == 0.0:
                    agrees = agreement(loaded[name], tokens, prompt_length)
                    figures["greedy"] = greedy_acceptance(agrees)
                    if not looping.all():
                        figures["greedy_without_loops"] = greedy_acceptance(agrees[~looping])
                else:
                    share = overlap(loaded[name], target, tokens, prompt_length, temperature)
                    figures[f"rejection_sampling_temperature_{temperature}"] = share
        result["kinds"][kind] = part
    if out.exists() and (heads := json.loads(out.read_text()).get("heads")) is not None:
        result["heads"] = heads  # of `evaluate_heads`
    out.write_text(json.dumps(result, indent=1) + "\n")
    typer.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    typer.run(main)
