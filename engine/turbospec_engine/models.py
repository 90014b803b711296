"""Model checkpoints, loaded once and shared by engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from turbospec import UserError
from turbospec_engine.attention import ATTENTION
from turbospec_engine.config import NGRAM, EngineConfig


@dataclass(frozen=True, slots=True)
class Models:
    """The weights and the tokenizer that engines of one target and drafter share."""

    target: PreTrainedModel
    drafter: PreTrainedModel | None
    """None without speculation, and for a drafter that is not a model."""
    tokenizer: Any
    """The target's Hugging Face tokenizer."""
    eos_token_ids: frozenset[int]

    @classmethod
    def load(cls, config: EngineConfig) -> Models:
        """Read the checkpoints that `config` names.

        Raises:
            UserError: a checkpoint is missing or unreadable, the device is absent, or the vocabularies of target and
                drafter differ.
        """
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        if torch.device(config.device).type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"device={config.device!r}, but torch sees no CUDA device; use device='cpu'")
        target = _load_model("target", config.target, config)
        tokenizer = _load_tokenizer("target", config.target)
        drafter = None
        if config.drafter is not None and str(config.drafter) != NGRAM:
            drafter = _load_model("drafter", config.drafter, config)
            _check_same_vocabulary(config, tokenizer, _load_tokenizer("drafter", config.drafter))
        return cls(target, drafter, tokenizer, _eos_token_ids(target))

    @property
    def vocab_size(self) -> int:
        return self.target.config.get_text_config().vocab_size

    @property
    def backend_tokenizer(self) -> Tokenizer:
        return self.tokenizer.backend_tokenizer


def _load_model(role: str, folder: str | Path, config: EngineConfig) -> PreTrainedModel:
    if not (Path(folder) / "config.json").is_file():
        raise UserError(f"{folder}: no {role} checkpoint here (no config.json); name a checkpoint folder")
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=config.torch_dtype, attn_implementation=ATTENTION, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder}: cannot load the {role} ({_one_line(error)}); name a checkpoint of a causal language model"
        ) from error
    model.to(torch.device(config.device))  # pyright: ignore[reportArgumentType]
    return model.eval()


def _load_tokenizer(role: str, folder: str | Path) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: cannot load the {role}'s tokenizer ({_one_line(error)}); add it") from error
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{folder}: the {role}'s tokenizer has no tokenizer.json; convert it to a fast tokenizer")
    return tokenizer


def _check_same_vocabulary(config: EngineConfig, target: Any, drafter: Any) -> None:
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    if ours == theirs:
        return
    differing = len(ours.items() ^ theirs.items())
    raise UserError(
        f"{config.drafter}: the drafter's vocabulary differs from the target's ({differing} entries); "
        f"use a drafter trained with the tokenizer of {config.target}"
    )


def _eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    eos = generation.eos_token_id if generation is not None else None
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
