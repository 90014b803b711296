"""The requests of a round, drawn by seed from held-out text.

Every request has `ignore_eos` and a fixed number of tokens, so that all policies do the same work. Requests of the
first four workloads are beginnings of held-out records. Output is sampled (at temperature 0 small models fall into
loops, which raises acceptance).

`code`, `prose`  requests of one kind of text.
`mixed`          a third code, a third prose, a third requests whose drafts never match, in shuffled order. The last
                 are code requests restricted to the rarer half of the vocabulary, as by structured output or
                 allowed tokens in real servers. Neither the drafter nor the controller knows of the restriction.
`shift`          thirds in order: code, unpredictable text, code. The unpredictable text is words of prose records
                 in random order, continued at a temperature at which the next token is nearly a matter of chance.
`edit`, `records`  a held-out record's whole prompt, greedy. The output is the record's answer, forced token by token as
                 by structured output with one possible answer: small models cannot repeat a prompt for long. Neither
                 the drafter nor the controller knows the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np

from turbospec_bench.configuration import Configuration
from turbospec_bench.texts import ANSWERED_PROMPT_TOKENS, PROMPT_TOKENS, TEXT_KINDS, Shape, read_answered, read_texts
from turbospec_engine.request import SamplingParams

T = TypeVar("T")
Kind = Literal["code", "prose", "restricted", "unpredictable"]
FILES = {"restricted": "code", "unpredictable": "prose"}
"""The texts of the kinds that have none of their own."""

TEMPERATURE = 0.8
TOP_P = 0.95
USUAL_SAMPLING = SamplingParams(temperature=TEMPERATURE, top_p=TOP_P)
"""Sampling settings of the requests with which profiles are measured."""
PROFILED_TEXTS = 64
UNPREDICTABLE_TEMPERATURE = 1.5


class Tokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class BenchRequest:
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one run and their arrival times."""

    requests: tuple[BenchRequest, ...]
    max_in_flight: int | None = None
    arrivals: tuple[float, ...] | None = None
    """Seconds from the start, one per request; None where all are ready at the start."""


class RequestSource:
    """Draws loads from `code.jsonl` and `prose.jsonl`.

    Args:
        answered: stems of the files with answers that are drawn from too; no other is read.

    Raises:
        UserError: a file is missing or is not what it should be.
    """

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, vocab_size: int, seed: int, answered: Collection[str] = ()
    ) -> None:
        self._texts = {kind: read_texts(folder / f"{kind}.jsonl") for kind in TEXT_KINDS}
        self._answered = {kind: read_answered(folder / f"{kind}.jsonl") for kind in answered}
        self._tokenizer = tokenizer
        self._allowed = tuple(range(vocab_size // 2, vocab_size))
        self._seed = seed

    def draw(self, configuration: Configuration, number: int) -> Load:
        """The load of a round, counted from the uncounted one; the same for every policy, different in every round and
        configuration."""
        rng = np.random.default_rng((self._seed, configuration.checksum, number))
        shape = Shape.of(configuration)
        requests = self._requests(configuration.workload, shape, rng)
        if configuration.request_rate is None:
            return Load(requests, max_in_flight=configuration.concurrency)
        gaps = rng.exponential(1 / configuration.request_rate, len(requests))
        return Load(requests, arrivals=tuple(np.cumsum(gaps).tolist()))

    def text(self) -> list[int]:
        """Tokens of some code records, concatenated, for measuring step times."""
        return self._tokenizer.encode("\n".join(self._texts["code"][:PROFILED_TEXTS]), add_special_tokens=False)

    def _requests(self, workload: str, shape: Shape, rng: np.random.Generator) -> tuple[BenchRequest, ...]:
        if workload in self._answered:
            chosen = islice(_shuffled(self._answered[workload], rng), shape.requests)
            return tuple(self._answered_request(*record, shape, rng) for record in chosen)
        texts = {kind: _shuffled(own, rng) for kind, own in self._texts.items()}
        kinds = _kinds(workload, shape.requests, rng)
        return tuple(self._request(kind, next(texts[FILES.get(kind, kind)]), shape, rng) for kind in kinds)

    def _answered_request(self, text: str, answer: str, shape: Shape, rng: np.random.Generator) -> BenchRequest:
        prompt = self._tokenizer.encode(text, add_special_tokens=False)[-ANSWERED_PROMPT_TOKENS:]
        forced = self._tokenizer.encode(answer, add_special_tokens=False)[: _output_tokens(shape, rng)]
        params = SamplingParams(max_tokens=len(forced), forced_token_ids=tuple(forced), ignore_eos=True)
        return BenchRequest(tuple(prompt), params)

    def _request(self, kind: Kind, text: str, shape: Shape, rng: np.random.Generator) -> BenchRequest:
        if kind == "unpredictable":
            text = " ".join(rng.permutation(text.split()))
        least, most = PROMPT_TOKENS
        prompt = self._tokenizer.encode(text, add_special_tokens=False)[: int(rng.integers(least, most + 1))]
        params = SamplingParams(
            max_tokens=_output_tokens(shape, rng),
            temperature=UNPREDICTABLE_TEMPERATURE if kind == "unpredictable" else TEMPERATURE,
            top_p=1.0 if kind == "unpredictable" else TOP_P,
            seed=int(rng.integers(2**31)),
            ignore_eos=True,
            allowed_token_ids=self._allowed if kind == "restricted" else None,
        )
        return BenchRequest(tuple(prompt), params)


def _shuffled(records: Sequence[T], rng: np.random.Generator) -> Iterator[T]:
    """Records in random order, each of them once before any comes again: a look-up that keeps answers would find the
    forced answer to a prompt that it has seen."""
    while True:
        for place in rng.permutation(len(records)):
            yield records[place]


def _output_tokens(shape: Shape, rng: np.random.Generator) -> int:
    return int(rng.integers(shape.output_tokens * 3 // 4, shape.output_tokens * 5 // 4 + 1))


def _kinds(workload: str, count: int, rng: np.random.Generator) -> list[Kind]:
    thirds = [index * 3 // count for index in range(count)]
    if workload == "shift":
        order: tuple[Kind, ...] = ("code", "unpredictable", "code")
        return [order[third] for third in thirds]
    if workload == "mixed":
        mixture: tuple[Kind, ...] = ("code", "prose", "restricted")
        return [mixture[third] for third in rng.permutation(thirds)]
    kind: Kind = "prose" if workload == "prose" else "code"
    return [kind] * count
