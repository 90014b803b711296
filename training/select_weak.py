"""List the first-position acceptance of early drafter checkpoints, to choose the weak drafter by measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoTokenizer, LlamaForCausalLM

from training.corpus import CACHE
from training.evaluate import NEW_TOKENS, agreement, excerpts, greedy_acceptance
from training.generate import continuations


def main(
    run: Annotated[Path, typer.Argument(help="Run folder with tokens-* checkpoints.")],
    target: Annotated[Path, typer.Option(help="Target checkpoint.")],
    count: Annotated[int, typer.Option(help="Held-out code prompts.")] = 96,
    prompt_length: Annotated[int, typer.Option(help="Prompt length in tokens.")] = 128,
    workload: Annotated[Path, typer.Option(help="Excerpts to prompt with.")] = Path("workloads/code.jsonl"),
    cache: Path = CACHE,
) -> None:
    """Print greedy acceptance at the first chain position for every checkpoint of RUN."""
    tokenizer = AutoTokenizer.from_pretrained(cache / "tokenizer")
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    starts = excerpts(workload, tokenizer, prompt_length, count)[:, :prompt_length]
    tokens = continuations(model, starts, NEW_TOKENS, temperature=0.0, seed=0)
    for folder in sorted(run.glob("tokens-*")):
        drafter = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        figures = greedy_acceptance(agreement(drafter, tokens, prompt_length))
        typer.echo(f"{folder.name}  first position {figures['position'][0]}  mean {figures['mean_accepted_k5']}")


if __name__ == "__main__":
    typer.run(main)
