"""The requests of a round, as a dataset and options of `vllm bench serve`.

Requests are greedy, so that all variants generate the same text. They ignore the end-of-text token; each has its own
number of output tokens.

`text`             beginnings of held-out code and prose, half and half, in shuffled order.
`edit`, `records`  held-out records' whole prompts. Their answers are the target's own: vLLM forces no answer.
`random`           vLLM's own random tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from transformers import AutoTokenizer

from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.texts import ANSWERED_PROMPT_TOKENS, PROMPT_TOKENS, TEXT_KINDS, Shape, read_answered, read_texts
from turbospec_bench.vllm.matrix import RANDOM, TEXT

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


def shape_of(configuration: Configuration, scale: int = 1) -> Shape:
    """A few seconds of load on two cores, or `scale` times as many requests."""
    busy = configuration.concurrency or 1
    shape = Shape(6, 128) if busy < 4 else Shape(4 * busy, 96) if busy < 16 else Shape(2 * busy, 64)
    return replace(shape, requests=scale * shape.requests)


@dataclass(frozen=True, slots=True)
class VllmLoad:
    requests: int
    arguments: tuple[str, ...]
    """Of `vllm bench serve`: what is sent and how, but not to which server."""


class LoadSource:
    """Draws loads; those of text come from `code.jsonl` and `prose.jsonl`.

    Args:
        scratch: a folder for datasets.
        answered: stems of the files with answers that are drawn from too; no other is read.
        scale: of `shape_of`.

    Raises:
        UserError: a file is missing or is not what it should be.
    """

    def __init__(
        self,
        workloads: Path,
        tokenizer: Tokenizer,
        scratch: Path,
        seed: int,
        answered: Collection[str] = (),
        scale: int = 1,
    ) -> None:
        self._texts = {kind: read_texts(workloads / f"{kind}.jsonl") for kind in TEXT_KINDS}
        self._texts |= {kind: [text for text, _ in read_answered(workloads / f"{kind}.jsonl")] for kind in answered}
        self._tokenizer = tokenizer
        self._scratch = scratch
        self._seed = seed
        self._scale = scale

    def draw(self, configuration: Configuration, number: int) -> VllmLoad:
        """The load of a configuration's round; 0 is the first uncounted round. The same for every variant."""
        rng = np.random.default_rng((self._seed, configuration.checksum, number))
        shape = shape_of(configuration, self._scale)
        workload = configuration.workload
        dataset = _random(shape, int(rng.integers(2**31))) if workload == RANDOM else self._text(workload, shape, rng)
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

    def _text(self, workload: str, shape: Shape, rng: np.random.Generator) -> tuple[str, ...]:
        least, most = (round(shape.output_tokens * (1 + sign * LENGTH_VARIATION)) for sign in (-1, 1))
        kinds = TEXT_KINDS if workload == TEXT else (workload,)
        lines: list[str] = []
        for kind in rng.permutation(np.arange(shape.requests) % len(kinds)):
            texts = self._texts[kinds[kind]]
            tokens = self._tokenizer.encode(texts[int(rng.integers(len(texts)))], add_special_tokens=False)
            if workload == TEXT:
                tokens = tokens[: int(rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1))]
            else:
                tokens = tokens[-ANSWERED_PROMPT_TOKENS:]
            prompt = self._tokenizer.decode(tokens)
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
