"""The requests of a round, as a dataset and options of `vllm bench serve`.

Requests are greedy, so that all variants generate the same text. They ignore the end-of-text token; each has its own
number of output tokens.

`text`    beginnings of held-out code and prose, half and half, in shuffled order.
`random`  vLLM's own random tokens.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from transformers import AutoTokenizer

from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.texts import PROMPT_TOKENS, TEXT_KINDS, Shape, read_texts
from turbospec_bench.vllm.matrix import TEXT

LENGTH_VARIATION = 0.25
"""Largest relative deviation of output lengths from their mean; of random prompts too."""


class Tokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, token_ids: list[int]) -> str: ...


def load_tokenizer(target: str) -> Tokenizer:
    """The target's tokenizer.

    Raises:
        UserError: there is none.
    """
    try:
        return AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=False)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # of transformers and tokenizers, which have no common class
        raise UserError(
            f"{target}: no target checkpoint ({type(error).__name__}); name the folder of the models with --models"
        ) from error


def shape_of(configuration: Configuration) -> Shape:
    """A few seconds of load on two cores."""
    busy = configuration.concurrency or 1
    return Shape(6, 128) if busy < 4 else Shape(4 * busy, 96) if busy < 16 else Shape(2 * busy, 64)


@dataclass(frozen=True, slots=True)
class VllmLoad:
    requests: int
    arguments: tuple[str, ...]
    """Of `vllm bench serve`: what is sent and how, but not to which server."""


class LoadSource:
    """Draws loads; those of text come from `code.jsonl` and `prose.jsonl`.

    Raises:
        UserError: a file is missing or is not what it should be.
    """

    def __init__(self, workloads: Path, tokenizer: Tokenizer, scratch: Path, seed: int) -> None:
        """`scratch` is a folder for datasets."""
        self._texts = [read_texts(workloads / f"{kind}.jsonl") for kind in TEXT_KINDS]
        self._tokenizer = tokenizer
        self._scratch = scratch
        self._seed = seed

    def draw(self, configuration: Configuration, number: int) -> VllmLoad:
        """The load of a configuration's round; 0 is the first uncounted round. The same for every variant."""
        rng = np.random.default_rng((self._seed, zlib.crc32(configuration.name.encode()), number))
        shape = shape_of(configuration)
        dataset = self._text(shape, rng) if configuration.workload == TEXT else _random(shape, int(rng.integers(2**31)))
        return VllmLoad(
            shape.requests,
            (
                *dataset,
                *("--num-prompts", str(shape.requests), "--max-concurrency", str(configuration.concurrency)),
                *("--request-rate", "inf", "--temperature", "0", "--ignore-eos"),
                # A server that was idle while others were measured is slow in its first requests.
                *("--num-warmups", str(configuration.concurrency)),
            ),
        )

    def _text(self, shape: Shape, rng: np.random.Generator) -> tuple[str, ...]:
        least, most = (round(shape.output_tokens * (1 + sign * LENGTH_VARIATION)) for sign in (-1, 1))
        lines: list[str] = []
        for kind in rng.permutation(np.arange(shape.requests) % len(self._texts)):
            texts = self._texts[kind]
            tokens = self._tokenizer.encode(texts[int(rng.integers(len(texts)))], add_special_tokens=False)
            prompt = self._tokenizer.decode(tokens[: int(rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1))])
            lines.append(json.dumps({"prompt": prompt, "output_tokens": int(rng.integers(least, most + 1))}) + "\n")
        path = self._scratch / "requests.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
        return (
            *("--dataset-name", "custom", "--dataset-path", str(path), "--custom-output-len", "-1"),
            *("--skip-chat-template", "--disable-shuffle"),
        )


def _random(shape: Shape, seed: int) -> tuple[str, ...]:
    return (
        *("--dataset-name", "random", "--random-input-len", str(sum(PROMPT_TOKENS) // 2)),
        *("--random-output-len", str(shape.output_tokens), "--random-range-ratio", str(LENGTH_VARIATION)),
        *("--seed", str(seed)),
    )
