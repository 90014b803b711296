"""A request's parameters, its state while it is served, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from turbospec import Phase, UserError
from turbospec.interface import IntArray
from turbospec_engine.detokenizer import Detokenizer

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled.

    Raises:
        UserError: a value is out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with at least this probability; 1 keeps all."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the output; the output does not contain them."""
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    """The target may emit only these. The drafter is not told, so its acceptance suffers; the output stays lossless."""
    max_draft: int | None = None
    """The request's own longest draft; 0 never drafts for it, None leaves it to the engine."""
    service_class: str = "default"

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"max_tokens={self.max_tokens} is too small; use at least 1")
        if not self.temperature >= 0:
            raise UserError(f"temperature={self.temperature} is out of range; use 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k} is out of range; use 0 (all) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} is out of range; use more than 0 and at most 1")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise UserError("allowed_token_ids is empty, so nothing could be emitted; name at least one token")
        if self.max_draft is not None and self.max_draft < 0:
            raise UserError(f"max_draft={self.max_draft} is out of range; use 0 (never) or more")
        if any(not text for text in self.stop):
            raise UserError("stop holds an empty string, which would end every output; remove it")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to a request."""

    request_id: str
    new_token_ids: tuple[int, ...]
    new_text: str
    """Text that is safe to show: whole characters, and nothing that may turn out to be a stop string."""
    finished: bool
    finish_reason: FinishReason | None
    emitted_at: float
    """`time.perf_counter()` when the step handed the tokens out, seconds."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request, as `Engine.generate` returns it."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason


class Request:
    """A request from arrival to its last token.

    `tokens[:num_tokens]` is the prompt and what was emitted. The target's KV cache holds the first `computed` of
    them, the drafter's the first `draft_computed`; a decoding request lacks exactly its newest token in the former.
    """

    def __init__(
        self,
        request_id: str,
        row_id: int,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        arrival: float,
        max_total_tokens: int,
        class_id: int,
        seed: Sequence[int],
        allowed: torch.Tensor | None,
        detokenizer: Detokenizer,
    ) -> None:
        self.request_id = request_id
        self.row_id = row_id
        """The integer that identifies the request to the controller."""
        self.params = params
        self.arrival = arrival
        self.class_id = class_id
        self.allowed = allowed
        """(vocab,) additive mask: 0 for tokens the target may emit, -inf for the others; None allows all."""
        self.detokenizer = detokenizer
        self.rng = np.random.default_rng(seed)
        """The request's own draws, so that its output does not depend on its neighbours'."""
        self.max_total_tokens = max_total_tokens
        self.num_prompt_tokens = len(prompt)
        self.num_tokens = len(prompt)
        self.tokens: IntArray = np.empty(max_total_tokens, np.int64)
        self.tokens[: len(prompt)] = prompt
        self.computed = 0
        self.draft_computed = 0
        self.decode_steps = 0
        self.block_ids: list[int] = []
        self.finish_reason: FinishReason | None = None

    @property
    def emitted(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def tokens_left(self) -> int:
        return self.max_total_tokens - self.num_tokens

    @property
    def missing(self) -> int:
        """Tokens that the target has yet to compute; 1 while decoding."""
        return self.num_tokens - self.computed

    @property
    def phase(self) -> Phase:
        if self.emitted == 0 or self.missing > 1:
            return Phase.PREFILL
        return Phase.DECODE if self.decode_steps else Phase.FIRST_DECODE

    @property
    def output_tokens(self) -> IntArray:
        return self.tokens[self.num_prompt_tokens : self.num_tokens]

    def append(self, token_ids: Sequence[int]) -> None:
        self.tokens[self.num_tokens : self.num_tokens + len(token_ids)] = token_ids
        self.num_tokens += len(token_ids)
