"""Model checkpoints, loaded once and shared by engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from turbospec import UserError
from turbospec_engine.attention import ATTENTION
from turbospec_engine.checkpoint import eos_token_ids, load_model, load_tokenizer
from turbospec_engine.config import EngineConfig
from turbospec_engine.head import Head


@dataclass(frozen=True, slots=True)
class Models:
    """The weights and the tokenizer that engines of one target and drafter share."""

    target: PreTrainedModel
    drafter: PreTrainedModel | None
    """A draft model or a `Head`. None without speculation, and for a drafter that is not a model."""
    tokenizer: Any
    """The target's Hugging Face tokenizer."""
    eos_token_ids: frozenset[int]
    loaded_for: EngineConfig
    """The configuration that named them."""

    @classmethod
    def load(cls, config: EngineConfig) -> Models:
        """Read the checkpoints that `config` names.

        Raises:
            UserError: a checkpoint is missing, unreadable or incomplete, the device is absent, the target's tokenizer
                is another model's, the vocabularies of target and drafter differ, or a head does not fit the target.
        """
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        _check_device(config.device)
        target = _load("target", config.target, config)
        tokenizer = load_tokenizer("target", Path(config.target))
        _check_fits("target", config.target, tokenizer, target)
        drafter = None
        if config.drafter is not None and not config.drafter_is_lookup:
            drafter = _load("drafter", config.drafter, config, heads=True)
            head = isinstance(drafter, Head)
            if head:
                drafter.check_fits(target, config.drafter)
            # Heads are often published without a tokenizer.
            if not head or (Path(config.drafter) / "tokenizer.json").exists():
                _check_same_vocabulary(config, tokenizer, load_tokenizer("drafter", Path(config.drafter)))
            if not head:
                _check_fits("drafter", config.drafter, tokenizer, drafter)
        return cls(target, drafter, tokenizer, eos_token_ids("target", Path(config.target), target), config)

    def check_fits(self, config: EngineConfig, *, with_drafter: bool) -> None:
        """Check that these are the models that a configuration asks for.

        Args:
            config: of an engine.
            with_drafter: whether the engine uses the drafter that it names.

        Raises:
            UserError: they were loaded from other checkpoints, on another device, or in another type.
        """
        names = ["target", "device", "dtype"]
        if with_drafter and self.drafter is not None and config.drafter is not None and not config.drafter_is_lookup:
            names.append("drafter")
        for name in names:
            ours, asked = getattr(self.loaded_for, name), getattr(config, name)
            if _resolved(name, ours) != _resolved(name, asked):
                raise UserError(f"{name}={str(asked)!r}, but the models were loaded with {str(ours)!r}; load others")

    @property
    def vocab_size(self) -> int:
        return self.target.config.get_text_config().vocab_size

    @property
    def backend_tokenizer(self) -> Tokenizer:
        return self.tokenizer.backend_tokenizer


def _resolved(name: str, value: Any) -> object:
    """A field of a configuration in a form that is the same for the same folder or device."""
    match name:
        case "target" | "drafter":
            return Path(value).resolve()
        case "device":
            return torch.device(value).type, torch.device(value).index or 0
        case _:
            return value


def _load(role: str, folder: str | Path, config: EngineConfig, *, heads: bool = False) -> PreTrainedModel:
    return load_model(
        role, Path(folder), dtype=config.torch_dtype, device=config.device, attention=ATTENTION, heads=heads
    )


def _check_device(name: str) -> None:
    device = torch.device(name)
    if device.type != "cuda":
        return
    if not torch.cuda.is_available():
        raise UserError(f"device={name!r}, but torch sees no CUDA device; use the device cpu")
    if (device.index or 0) >= (count := torch.cuda.device_count()):
        raise UserError(f"device={name!r}, but the last CUDA device is cuda:{count - 1}; use one from cuda:0")


def _check_same_vocabulary(config: EngineConfig, target: Any, drafter: Any) -> None:
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    if ours == theirs:
        return
    differing = len(ours.items() ^ theirs.items())
    raise UserError(
        f"{config.drafter}: the drafter's vocabulary differs from the target's ({differing} entries); "
        f"use a drafter trained with the tokenizer of {config.target}"
    )


def _check_fits(role: str, folder: str | Path, tokenizer: Any, model: PreTrainedModel) -> None:
    """Check that a model has an embedding for every token of its tokenizer."""
    vocab_size = model.config.get_text_config().vocab_size
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise UserError(f"{folder}: the {role}'s tokenizer has no tokens; add the tokenizer.json of its model")
    if largest >= vocab_size:
        raise UserError(
            f"{folder}: the {role}'s tokenizer has token {largest}, but the model only {vocab_size} tokens; "
            "use the tokenizer that belongs to the model"
        )
