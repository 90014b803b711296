"""Text that the target generates from training prompts, for the distillation of the drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.progress import track
from transformers import LlamaForCausalLM

from training.architectures import PADDING_ID
from training.corpus import CACHE
from training.tokenizer import stream


def continuations(
    model: LlamaForCausalLM, starts: torch.Tensor, new_tokens: int, temperature: float, seed: int
) -> torch.Tensor:
    """Prompts with exactly ``new_tokens`` generated tokens each, shape ``[rows, prompt + new]``.

    Temperature 0 is greedy. Generation continues past ``<|endoftext|>``, as it does in the training stream.
    """
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    with torch.no_grad():
        return model.generate(  # pyright: ignore[reportAttributeAccessIssue]
            starts,
            attention_mask=torch.ones_like(starts),
            max_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=PADDING_ID,
            **sampling,
        )


def main(
    model: Annotated[Path, typer.Option(help="Target checkpoint.")],
    out: Annotated[Path, typer.Option(help="Folder that receives one .npy token stream per temperature.")],
    rows: Annotated[int, typer.Option(help="Generations per temperature.")] = 1024,
    batch: Annotated[int, typer.Option(help="Generations per batch.")] = 128,
    prompt_length: Annotated[int, typer.Option(help="Prompt tokens, taken from the training text.")] = 96,
    new_tokens: Annotated[int, typer.Option(help="Tokens generated after each prompt.")] = 160,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and the sampling.")] = 13,
    temperature: Annotated[
        list[float] | None, typer.Option(help="By default 0, 0.7 and 1; repeat for several.")
    ] = None,
    cache: Path = CACHE,
) -> None:
    """Generate; three prompts in four are code."""
    target = LlamaForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    draw = np.random.default_rng(seed)
    streams = [stream("train", "code", cache)] * 3 + [stream("train", "prose", cache)]
    out.mkdir(parents=True, exist_ok=True)
    for each in temperature or (0.0, 0.7, 1.0):
        pieces: list[np.ndarray] = []
        for number in track(range(0, rows, batch), description=f"temperature {each}"):
            chosen = [streams[(number + row) % len(streams)] for row in range(min(batch, rows - number))]
            first = [int(draw.integers(len(tokens) - prompt_length)) for tokens in chosen]
            starts = np.stack([t[s : s + prompt_length] for t, s in zip(chosen, first, strict=True)])
            sampling_seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
            texts = continuations(target, torch.from_numpy(starts.astype(np.int64)), new_tokens, each, sampling_seed)
            pieces.append(texts.numpy().astype(np.uint16).reshape(-1))
        np.save(out / f"temperature-{each}.npy", np.concatenate(pieces))


if __name__ == "__main__":
    typer.run(main)
