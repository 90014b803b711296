"""Grow the shipped models to the cost of larger ones, without changing what they compute.

On a GPU a step of the shipped pair takes less than a millisecond, so that nothing can be learnt there about
speculation. A grown model has the linear layers, and about the step time, of a model of that size, and the logits, and
so the acceptance, of the small one. Its vocabulary and its KV heads stay small. As in Chen et al., "Net2Net:
Accelerating Learning via Knowledge Transfer", 2016:

* Further dimensions of the hidden state are always zero: no embedding or projection writes to them. Norms divide by the
  root mean square over all dimensions, so that their weights and epsilon are scaled. bfloat16 rounds the weights unless
  the width grows by a power of 4.
* Further heads and MLP units are random, and the projections behind them ignore them.
* Further layers are random, and add nothing to the hidden state.

EAGLE-3 heads read the target's hidden state and are grown to the target's hidden size.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import load_file, save_file

from turbospec import UserError
from turbospec.errors import exit_on_user_error

FIRST_LAYER = "model.layers.0."
KEPT = ("d2t", "t2d")
"""Buffers of a head that name tokens."""
WRITES = ("o_proj", "down_proj", "fc")
"""Projections that write to the hidden state, or to a head's."""
EMBEDS = ("embed_tokens", "lm_head")
HIDDEN_A_HEAD = 128
"""Hidden dimensions for each head of a grown model."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a grown model; the number of KV heads and the dimension of a head stay."""

    hidden: int
    intermediate: int
    layers: int
    heads: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Grows the weights of one checkpoint.

    Args:
        config: of the checkpoint, as in its `config.json`.
        size: of the grown model.

    Raises:
        UserError: the size is smaller than the checkpoint's, or its heads cannot be divided among the KV heads.
    """

    config: dict[str, Any]
    size: Size

    def __post_init__(self) -> None:
        small, size = self.config, self.size
        grows = {"hidden": "hidden_size", "intermediate": "intermediate_size", "layers": "num_hidden_layers"}
        for name, key in (grows | {"heads": "num_attention_heads"}).items():
            if getattr(size, name) < small[key]:
                raise UserError(f"{name} {getattr(size, name)} is less than the checkpoint's {small[key]}; choose more")
        if size.heads % (keys := small["num_key_value_heads"]):
            raise UserError(f"{size.heads} heads are no multiple of the checkpoint's {keys} KV heads; change the width")

    def grown_config(self) -> dict[str, Any]:
        """The grown model's `config.json`."""
        size = self.size
        return self.config | {
            "hidden_size": size.hidden,
            "intermediate_size": size.intermediate,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "rms_norm_eps": self.config["rms_norm_eps"] * self.config["hidden_size"] / size.hidden,
        }

    def weights(self, small: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight of the grown model, and its name. They are on the device of the small ones."""
        for name, weight in small.items():
            yield name, self._grown(name, weight)
        first = {name: weight for name, weight in small.items() if name.startswith(FIRST_LAYER)}
        for layer in range(self.config["num_hidden_layers"], self.size.layers):
            for name, weight in first.items():
                added = self._grown(name, weight) if weight.dim() == 1 else self._matrix(_kind(name), weight)
                yield name.replace(FIRST_LAYER, f"model.layers.{layer}."), added

    def _grown(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        if name in KEPT:
            return weight
        if weight.dim() == 1:
            small, hidden = self.config["hidden_size"], self.size.hidden
            return torch.cat([weight, weight.new_ones(hidden - small)]) * math.sqrt(small / hidden)
        kind = _kind(name)
        rows, columns = self._places(kind, weight)
        grown = self._matrix(kind, weight)
        grown[rows[:, None], columns] = weight
        return grown

    def _matrix(self, kind: str, weight: torch.Tensor) -> torch.Tensor:
        """A matrix of the grown size that changes no result: zeros where it would be read, random elsewhere."""
        size, blocks = self.size, weight.shape[1] // self.config["hidden_size"]
        queries = size.heads * self.config["head_dim"]
        rows = {"q_proj": queries, "gate_proj": size.intermediate, "up_proj": size.intermediate}
        rows |= dict.fromkeys(WRITES, size.hidden)
        columns = {"o_proj": queries, "down_proj": size.intermediate}
        matrix = weight.new_zeros(rows.get(kind, weight.shape[0]), columns.get(kind, blocks * size.hidden))
        if kind not in WRITES + EMBEDS:
            matrix.normal_(std=self.config["initializer_range"])
        return matrix

    def _places(self, kind: str, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where rows and columns of a small weight are in the grown one."""
        rows, columns = (torch.arange(length, device=weight.device) for length in weight.shape)
        if kind == "o_proj":
            return rows, self._query(columns)
        if kind == "down_proj":
            return rows, columns
        # A weight reads one hidden state, or several side by side.
        small = self.config["hidden_size"]
        columns = columns // small * self.size.hidden + columns % small
        return (self._query(rows) if kind == "q_proj" else rows), columns

    def _query(self, index: torch.Tensor) -> torch.Tensor:
        """The place of a query dimension, whose head keeps its KV head."""
        keys, head = self.config["num_key_value_heads"], self.config["head_dim"]
        group, grown = self.config["num_attention_heads"] // keys, self.size.heads // keys
        number = index // head
        return (number // group * grown + number % group) * head + index % head


def _kind(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[2]


def grow(source: Path, out: Path, size: Size, device: str) -> int:
    """Grow one checkpoint.

    Returns:
        The number of its weights.

    Raises:
        UserError: there is no checkpoint, or it does not fit the size.
    """
    if not all((source / name).is_file() for name in ("config.json", "model.safetensors")):
        raise UserError(f"{source}: no checkpoint; name the folder of the models with --models")
    growth = Growth(json.loads((source / "config.json").read_text()), size)
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix == ".json" and path.name != "config.json":
            shutil.copyfile(path, out / path.name)
    (out / "config.json").write_text(json.dumps(growth.grown_config(), indent=2) + "\n")
    small = load_file(source / "model.safetensors", device)
    weights = {name: weight.cpu() for name, weight in growth.weights(small)}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return sum(weight.numel() for weight in weights.values())


def main(
    out: Annotated[Path, typer.Option(help="Folder that receives the grown models.")],
    models: Annotated[Path, typer.Option(help="Folder of the target and its drafters.")] = Path("models"),
    hidden: Annotated[int, typer.Option(help="Hidden size of the target.")] = 4096,
    layers: Annotated[int, typer.Option(help="Layers of the target.")] = 32,
    drafter_hidden: Annotated[int, typer.Option(help="Hidden size of draft models.")] = 3072,
    drafter_layers: Annotated[int, typer.Option(help="Layers of draft models.")] = 8,
    device: Annotated[str, typer.Option(help="Where weights are made: cpu or cuda.")] = "cpu",
) -> None:
    """Grow the target, its draft models and its EAGLE-3 heads; 6.2 and 0.7 billion weights by default.

    Heads that draft in one pass (P-EAGLE, DFlash) are not grown.
    """
    torch.manual_seed(0)
    target = Size(hidden, hidden * 7 // 2, layers, hidden // HIDDEN_A_HEAD)
    drafter = Size(drafter_hidden, drafter_hidden * 8 // 3, drafter_layers, drafter_hidden // HIDDEN_A_HEAD)
    head = Size(target.hidden, target.intermediate, 1, target.heads)
    sizes = {"target": target} | dict.fromkeys(("drafter", "drafter-weak", "drafter-mismatched"), drafter)
    sizes |= dict.fromkeys(("eagle3", "eagle3-untrained"), head)
    with exit_on_user_error():
        for name, size in sizes.items():
            typer.echo(f"{name:20} {grow(models / name, out / name, size, device) / 1e9:6.2f} billion weights")


if __name__ == "__main__":
    typer.run(main)
