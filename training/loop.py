"""The training loop: budget, learning-rate schedule, optimisers, and a state file to resume from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from turbospec.errors import UserError

WARMUP_STEPS = 40
DECAY_SHARE = 0.45
MUON_RATE = 0.015
STATE_EVERY_SECONDS = 120.0


@dataclass
class Progressed:
    """Progress of a run: the part of its state that is not tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Budget:
    """Limits of a run; the first one that is reached ends it."""

    tokens: int
    seconds: float | None = None
    """None: no limit."""

    def share(self, done: Progressed) -> float:
        """Share of the budget that is spent, of the limit that will be reached first."""
        by_tokens = done.tokens / self.tokens
        return by_tokens if self.seconds is None else max(by_tokens, done.seconds / self.seconds)


class Run:
    """Trains a module step by step; resumes from its state file where there is one.

    Args:
        module: the module to train.
        vocabulary: part of the name of its matrix over the vocabulary.
        adamw_rate: learning rate of that matrix and of the norms.
        budget: of the whole run, the part before a resumption included.
        tokens_per_step: tokens of a batch.
        state_file: written every two minutes, and at the end.
        origin: what the module is trained for and from; a state of another origin is refused.

    Raises:
        UserError: the state file is of another origin.
    """

    def __init__(
        self,
        module: nn.Module,
        vocabulary: str,
        adamw_rate: float,
        budget: Budget,
        tokens_per_step: int,
        state_file: Path,
        origin: str = "",
    ) -> None:
        self.done = Progressed()
        self.rate_factor = 0.0
        """Learning-rate factor of the current step."""
        self._began = 0.0
        """Time at which an uninterrupted run would have begun."""
        self._module = module
        self._optimizers = optimizers_for(module, vocabulary, adamw_rate)
        self._groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._rates = [group["lr"] for group in self._groups]
        self._budget = budget
        self._tokens_per_step = tokens_per_step
        self._state_file = state_file
        self._origin = origin
        if state_file.exists():
            state = torch.load(state_file, weights_only=True)
            if state.get("origin", "") != origin:
                was = state.get("origin") or "options that were not recorded"
                raise UserError(f"{state_file}: is of a run with {was}, and this one has {origin}; move it away")
            module.load_state_dict(state["model"])
            for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.done = Progressed(**state["done"])

    def steps(self) -> Iterator[int]:
        """Numbers of the remaining steps; call `learn` once for each."""
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
        """Backward pass and optimiser step for a loss."""
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
            "origin": self._origin,
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
    """A progress bar over thousands of tokens, with an ETA."""
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
