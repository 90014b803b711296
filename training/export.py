"""Assemble the shipped folders under ``models/``: weights, generation settings and the one shared tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import LlamaForCausalLM

from training.corpus import CACHE

TARGET, DRAFTER, WEAK, MISMATCHED = "target", "drafter", "drafter-weak", "drafter-mismatched"


def permuted(model: LlamaForCausalLM, seed: int) -> LlamaForCausalLM:
    """The same model with the rows of its tied embedding shuffled: same shape and cost, useless proposals."""
    embedding = model.get_parameter("model.embed_tokens.weight")
    order = torch.randperm(embedding.shape[0], generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        embedding.copy_(embedding[order].clone())
    return model


def write_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer and set the class name that every version of the loader supports."""
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.pop("backend", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    special = {key: settings[key] for key in ("bos_token", "eos_token", "pad_token")}
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")


def main(
    target: Annotated[Path, typer.Option(help="Trained target checkpoint.")],
    drafter: Annotated[Path, typer.Option(help="Distilled drafter checkpoint.")],
    weak: Annotated[Path, typer.Option(help="Early checkpoint of a drafter.")],
    out: Annotated[Path, typer.Option(help="Folder that receives the four checkpoints.")] = Path("models"),
    seed: Annotated[int, typer.Option(help="Seed of the mismatched drafter's permutation.")] = 7,
    cache: Path = CACHE,
) -> None:
    """Write the four checkpoints and print their sizes."""
    chosen = {TARGET: target, DRAFTER: drafter, WEAK: weak, MISMATCHED: drafter}
    for name, source in chosen.items():
        folder = out / name
        model = LlamaForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        if name == MISMATCHED:
            model = permuted(model, seed)
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        write_tokenizer(cache / "tokenizer", folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        typer.echo(f"{name:20} {size / 1e6:6.2f} MB from {source}")


if __name__ == "__main__":
    typer.run(main)
