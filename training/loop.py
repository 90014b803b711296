"""The training loop: a budget, a schedule of learning rates, optimisers, and a state to go on from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

WARMUP_STEPS = 40
DECAY_SHARE = 0.45
MUON_RATE = 0.015
STATE_EVERY_SECONDS = 120.0


@dataclass
class Progressed:
    """How far a run has come; the part of the state that is not tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Budget:
    """When a run ends."""

    tokens: int
    seconds: float | None = None
    """None for as long as the tokens take."""

    def share(self, done: Progressed) -> float:
        """How much of it is spent, by what there is least of."""
        by_tokens = done.tokens / self.tokens
        return by_tokens if self.seconds is None else max(by_tokens, done.seconds / self.seconds)


class Run:
    """Trains a module step by step, and goes on from its state file where there is one.

    Args:
        module: what is trained.
        vocabulary: in the name of its matrix over the vocabulary.
        adamw_rate: learning rate of that matrix and of the norms.
        budget: of the whole run, what its state file has behind it included.
        tokens_per_step: that each step sees.
        state_file: written every two minutes, and in the end.
    """

    def __init__(
        self,
        module: nn.Module,
        vocabulary: str,
        adamw_rate: float,
        budget: Budget,
        tokens_per_step: int,
        state_file: Path,
    ) -> None:
        self.done = Progressed()
        self.rate_factor = 0.0
        """Of the step that is made."""
        self._began = 0.0
        """On the clock, had the run never been interrupted."""
        self._module = module
        self._optimizers = optimizers_for(module, vocabulary, adamw_rate)
        self._groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._rates = [group["lr"] for group in self._groups]
        self._budget = budget
        self._tokens_per_step = tokens_per_step
        self._state_file = state_file
        if state_file.exists():
            state = torch.load(state_file, weights_only=True)
            module.load_state_dict(state["model"])
            for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.done = Progressed(**state["done"])

    def steps(self) -> Iterator[int]:
        """The number of each step that is left; for each, `learn` is to be called once."""
        self._module.train()
        self._began = time.monotonic() - self.done.seconds
        saved_at = time.monotonic()
        while (share := self._budget.share(self.done)) < 1.0:
            self.rate_factor = rate_factor(self.done.step, share)
            for group, rate in zip(self._groups, self._rates, strict=True):
                group["lr"] = rate * self.rate_factor
            yield self.done.step
            if time.monotonic() - saved_at > STATE_EVERY_SECONDS:
                self._save()
                saved_at = time.monotonic()
        self._save()

    def learn(self, loss: Tensor) -> None:
        """Make a step down a loss."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done.step += 1
        self.done.tokens += self._tokens_per_step
        self.done.seconds = time.monotonic() - self._began

    def _save(self) -> None:
        state = {
            "model": self._module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "done": asdict(self.done),
        }
        torch.save(state, self._state_file.with_suffix(".tmp"))
        self._state_file.with_suffix(".tmp").replace(self._state_file)


def rate_factor(step: int, share_done: float) -> float:
    """Learning-rate multiplier: short linear warm-up, constant, then linear decay to 2 % over the last part."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    decay = min(1.0, max(0.02, (1.0 - share_done) / DECAY_SHARE))
    return warmup * decay


def optimizers_for(model: nn.Module, vocabulary: str, adamw_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the norms and the matrix over the vocabulary, by its name."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and vocabulary not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or vocabulary in name]
    return [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(others, lr=adamw_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def token_progress() -> Progress:
    """A bar over thousands of tokens, with what is left of the time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("k tokens"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        refresh_per_second=0.5,
        speed_estimate_period=120.0,
    )
