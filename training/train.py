"""Train the target on text, or the drafter on text and then on the target's own distribution.

One loop serves both: without ``--teacher`` the loss is cross-entropy with the next token, with ``--teacher``
it is cross-entropy with the teacher's distribution over the next token (distillation).

By default the run length is a token budget, which makes a run reproducible from its seed. With
``--deadline-minutes`` the learning rate also anneals by elapsed time and the run stops at the deadline,
whichever comes first. Run the command again to resume from ``state.pt`` in the output folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from transformers import LlamaForCausalLM

from training.architectures import Role, drafter_for, fresh_model
from training.batches import Windows
from training.corpus import CACHE
from training.loop import Budget, Progressed, Run, token_progress
from training.tokenizer import stream
from turbospec.errors import UserError, exit_on_user_error

ADAMW_RATE = 3e-3
GENERATED_SHARE = 0.5


def loss_on(model: LlamaForCausalLM, teacher: LlamaForCausalLM | None, tokens: torch.Tensor) -> torch.Tensor:
    """Mean loss in nats per token of ``tokens`` with shape ``[batch, length + 1]``."""
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=inputs, use_cache=False).logits
    flat = logits.float().flatten(0, 1)
    if teacher is None:
        return F.cross_entropy(flat, labels.flatten())
    with torch.no_grad():
        wanted = teacher(input_ids=inputs, use_cache=False).logits.float().softmax(-1)
    return F.cross_entropy(flat, wanted.flatten(0, 1))


def with_generated(text: list[np.ndarray], folder: Path) -> list[np.ndarray]:
    """Corpus streams plus the ``.npy`` streams of ``folder``, repeated to make up ``GENERATED_SHARE`` of all tokens.

    Raises:
        UserError: the folder has none.
    """
    generated = [np.load(path) for path in sorted(folder.glob("*.npy"))]
    tokens = sum(map(len, generated))
    if not tokens:
        raise UserError(f"--generated {folder}: no tokens in it; write them with `python -m training.generate`")
    wanted = sum(map(len, text)) * GENERATED_SHARE / (1.0 - GENERATED_SHARE)
    return text + generated * max(1, round(wanted / tokens))


def save_weights(model: LlamaForCausalLM, folder: Path, note: dict[str, Any]) -> None:
    """Write a loadable bf16 checkpoint (without tokenizer) and a note on how far training had come."""
    weights = {name: tensor.detach().to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    copy = LlamaForCausalLM(model.config).bfloat16()
    copy.load_state_dict(weights)
    copy.save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(note, indent=1) + "\n")


def train(
    model: LlamaForCausalLM,
    teacher: LlamaForCausalLM | None,
    windows: Windows,
    out: Path,
    token_budget: int,
    deadline_seconds: float | None,
    snapshot_every_tokens: int | None,
    origin: str,
) -> Progressed:
    """Run the loop until the token budget or the deadline, resuming from ``out/state.pt`` when it exists.

    Raises:
        UserError: that is of a run of another origin.
    """
    tokens_per_step = windows.batch * windows.length
    budget = Budget(token_budget, deadline_seconds)
    run = Run(model, "embed_tokens", ADAMW_RATE, budget, tokens_per_step, out / "state.pt", origin)
    done, smoothed = run.done, None
    with token_progress() as bar, (out / "log.jsonl").open("a", encoding="utf-8") as log:
        task = bar.add_task("loss  ...", total=token_budget // 1000, completed=done.tokens // 1000)
        for step in run.steps():
            loss = loss_on(model, teacher, windows.at(step))
            run.learn(loss)
            value = loss.item()
            smoothed = value if smoothed is None else 0.98 * smoothed + 0.02 * value
            bar.update(task, completed=done.tokens // 1000, description=f"loss {smoothed:.3f}")
            if done.step % 20 == 0:
                entry = {**asdict(done), "loss": round(smoothed, 4), "rate_factor": run.rate_factor}
                log.write(json.dumps(entry) + "\n")
                log.flush()
            crossed = snapshot_every_tokens and done.tokens % snapshot_every_tokens < tokens_per_step
            if crossed:
                save_weights(model, out / f"tokens-{done.tokens:09d}", asdict(done))
    save_weights(model, out / "final", asdict(done))
    return done


def main(
    role: Annotated[Role, typer.Argument(help="Which shape to train.")],
    out: Annotated[Path, typer.Option(help="Run folder; holds state.pt, log.jsonl and the checkpoints.")],
    tokens: Annotated[int, typer.Option(help="Token budget, in tokens seen.")],
    teacher: Annotated[Path | None, typer.Option(help="Distil from this checkpoint.")] = None,
    init: Annotated[Path | None, typer.Option(help="Start from this checkpoint, not from random weights.")] = None,
    generated: Annotated[Path | None, typer.Option(help="Mix in the .npy streams of this folder.")] = None,
    deadline_minutes: Annotated[float | None, typer.Option(help="Anneal and stop by elapsed time as well.")] = None,
    snapshot_every_tokens: Annotated[int | None, typer.Option(help="Also keep intermediate checkpoints.")] = None,
    batch: Annotated[int, typer.Option(help="Windows per step.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens per window.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the data order.")] = 7,
    cache: Path = CACHE,
) -> None:
    """Train ROLE for a token budget."""
    out.mkdir(parents=True, exist_ok=True)
    streams = [stream("train", "code", cache), stream("train", "prose", cache)]
    if generated is not None:
        streams = with_generated(streams, generated)
    guide = LlamaForCausalLM.from_pretrained(teacher, dtype=torch.bfloat16).eval() if teacher else None
    if init is not None:
        model = LlamaForCausalLM.from_pretrained(init, dtype=torch.float32)
    else:
        model = fresh_model(role, seed) if guide is None else drafter_for(guide, seed)
    deadline = None if deadline_minutes is None else 60.0 * deadline_minutes
    windows = Windows(streams, length, batch, seed)
    origin = f"{role}, teacher {teacher}, init {init}, seed {seed}, batch {batch}, length {length}"
    done = train(model, guide, windows, out, tokens, deadline, snapshot_every_tokens, origin)
    typer.echo(f"{done.tokens} tokens in {done.step} steps, {done.seconds:.0f} s")


if __name__ == "__main__":
    with exit_on_user_error():
        typer.run(main)
