"""A request: sampling parameters, state while it is served, and outputs."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from turbospec import Phase, UserError
from turbospec.interface import IntArray
from turbospec_engine.detokenizer import Detokenizer
from turbospec_engine.limits import are_token_ids, check_integer, check_number

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e6
"""Of requests that sample: logits stay finite when they are divided by it."""
MAX_STOP_CHARACTERS = 10_000
"""In all stop strings of a request: every step compares them with the output."""

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
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens with at least this total probability; 1 keeps all."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the output, which does not contain them."""
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be emitted. The drafter does not know of them: fewer drafts are accepted, losslessly."""
    forced_token_ids: tuple[int, ...] | None = None
    """The output's first tokens, in order, as where structured output leaves one answer. Drafters do not know them."""
    max_draft: int | None = None
    """Largest draft length of this request; 0 never drafts for it, None: the engine's own limit."""
    service_class: str = "default"

    def __post_init__(self) -> None:
        check_integer("max_tokens", self.max_tokens, 1)
        temperature = check_number("temperature", self.temperature)
        if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
            raise UserError(
                f"temperature={self.temperature} is out of range; use 0 (greedy), or from {MIN_TEMPERATURE:g} to "
                f"{MAX_TEMPERATURE:g}"
            )
        check_integer("top_k", self.top_k, 0, hint=" (0 keeps all)")
        if not 0 < check_number("top_p", self.top_p) <= 1:
            raise UserError(f"top_p={self.top_p} is out of range; use more than 0 and at most 1")
        if self.seed is not None:
            check_integer("seed", self.seed, 0)
        for name in ("allowed_token_ids", "forced_token_ids"):
            value = getattr(self, name)
            if value is not None and not are_token_ids(value):
                raise UserError(f"{name} is no tuple of token ids, which are integers; give one")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise UserError("allowed_token_ids is empty, so nothing could be emitted; name at least one token")
        if self.max_draft is not None:
            check_integer("max_draft", self.max_draft, 0, hint=" (0 never drafts)")
        if isinstance(self.stop, str) or not isinstance(self.stop, Collection):
            raise UserError("stop is no tuple of strings; give one, empty for none")
        if not all(isinstance(text, str) for text in self.stop):
            raise UserError("stop holds something that is no string; give a tuple of strings")
        if any(not text for text in self.stop):
            raise UserError("stop holds an empty string, which would end every output; remove it")
        if sum(map(len, self.stop)) > MAX_STOP_CHARACTERS:
            raise UserError(f"stop holds more than {MAX_STOP_CHARACTERS} characters; shorten its strings")
        if not isinstance(self.service_class, str):
            raise UserError(f"service_class is {self.service_class!r}, not a name; give a string")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step emitted for a request."""

    request_id: str
    new_token_ids: tuple[int, ...]
    new_text: str
    """Text that is safe to show: whole characters, and not the beginning of a stop string."""
    finished: bool
    finish_reason: FinishReason | None
    emitted_at: float
    """`time.perf_counter()` at the emission, seconds."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request, as `Engine.generate` returns it."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason


class Request:
    """A request from its arrival to its last token.

    `tokens[:num_tokens]` are the prompt and the emitted tokens. The target's KV cache holds the first `computed` of
    them, the drafter's KV cache the first `draft_computed`. A decoding request has computed all but its newest token.
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
        """The request's id in the controller's views."""
        self.params = params
        self.arrival = arrival
        self.class_id = class_id
        self.allowed = allowed
        """(vocab,) additive mask on the target's logits: 0 for allowed tokens, -inf for others; None allows all."""
        self.detokenizer = detokenizer
        self.rng = np.random.default_rng(seed)
        """The request's own generator: its output does not depend on the rest of the batch."""
        self.max_total_tokens = max_total_tokens
        self.num_prompt_tokens = len(prompt)
        self.num_tokens = len(prompt)
        self.tokens: IntArray = np.empty(max_total_tokens, np.int64)
        self.tokens[: len(prompt)] = prompt
        self.computed = 0
        self.draft_computed = 0
        self.decode_steps = 0
        self.drafted_at = 0
        """`decode_steps` at the last step that was planned to draft from the drafter; 0 before."""
        # Arrays, because numpy copies them much faster than lists.
        self.block_ids = array("q")
        """The target's KV blocks."""
        self.draft_block_ids = array("q")
        """The drafter's, where it takes them from the same memory."""
        self.finish_reason: FinishReason | None = None

    @property
    def emitted(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def tokens_left(self) -> int:
        return self.max_total_tokens - self.num_tokens

    @property
    def missing(self) -> int:
        """Tokens that the target has not computed yet; 1 while decoding."""
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
