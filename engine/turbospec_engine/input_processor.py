"""From a prompt and its parameters to a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from turbospec import UserError
from turbospec.models.logistic import MAX_CLASSES
from turbospec_engine.config import EngineConfig
from turbospec_engine.detokenizer import Detokenizer
from turbospec_engine.limits import are_token_ids
from turbospec_engine.models import Models
from turbospec_engine.request import Request, SamplingParams

MAX_MASKS = 64
"""Most masks of allowed tokens that are kept for later requests with the same tokens; each is (vocab,)."""

LONGEST_TOKEN = 64
"""Least number of characters that the longest token is taken for: an unknown word may be one token."""


class InputProcessor:
    """Validates prompts and sampling parameters and makes requests of them.

    Args:
        max_request_tokens: longest prompt and output together.
        max_draft: longest draft of the engine, of any source.
    """

    def __init__(self, config: EngineConfig, models: Models, max_request_tokens: int, max_draft: int) -> None:
        self.max_request_tokens = max_request_tokens
        self.max_draft = max_draft
        self._config = config
        self._models = models
        self._class_ids = {"default": 0}
        self._longest_token = max(LONGEST_TOKEN, *map(len, models.tokenizer.get_vocab()))

        @lru_cache(MAX_MASKS)
        def allowed_mask(allowed: tuple[int, ...]) -> torch.Tensor:
            mask = torch.full((models.vocab_size,), -torch.inf, device=models.target.device)
            mask[list(allowed)] = 0.0
            return mask

        self._allowed_mask = allowed_mask

    def process(self, prompt: str | Sequence[int], params: SamplingParams, request_id: str, row_id: int) -> Request:
        """A request that arrives now.

        Raises:
            UserError: the prompt is empty, too long or out of the vocabulary, a parameter is out of range, or there are
                more service classes than the controller distinguishes.
        """
        tokenizer = self._models.tokenizer
        if isinstance(prompt, str):
            self._check_text(prompt)
            token_ids = tokenizer(prompt)["input_ids"]
        else:
            token_ids = self._token_ids(prompt)
        self._check_prompt(token_ids)
        self._check_params(params)
        return Request(
            request_id,
            row_id,
            token_ids,
            params,
            arrival=time.monotonic(),
            max_total_tokens=min(len(token_ids) + params.max_tokens, self.max_request_tokens),
            class_id=self._class_id(params.service_class),
            # numpy pads seeds with zeros: without the 1, request 0 would draw the numbers of `seed=config.seed`.
            seed=(self._config.seed, row_id, 1) if params.seed is None else (params.seed,),
            allowed=None if params.allowed_token_ids is None else self._allowed_mask(tuple(params.allowed_token_ids)),
            detokenizer=Detokenizer(self._models.backend_tokenizer, params.stop),
        )

    def _token_ids(self, prompt: Sequence[int]) -> list[int]:
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        if not are_token_ids(prompt):
            raise UserError("the prompt is neither a text nor token ids, which are integers; encode it first")
        return [int(token) for token in prompt]

    def _check_text(self, prompt: str) -> None:
        """Refuse what the tokenizer cannot take, or would work on for minutes."""
        if len(prompt) > (limit := self.max_request_tokens * self._longest_token):
            raise UserError(
                f"the prompt has {len(prompt)} characters, but model and KV cache hold "
                f"{self.max_request_tokens} tokens, at most {limit} characters; shorten it, or raise "
                "max_model_len or num_blocks"
            )
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the prompt is no Unicode text (character {error.start}: half of a surrogate pair); encode it in UTF-8"
            ) from error

    def _check_prompt(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise UserError("the prompt is empty; give at least one token")
        if len(token_ids) >= self.max_request_tokens:
            raise UserError(
                f"the prompt has {len(token_ids)} tokens, but model and KV cache hold {self.max_request_tokens} of "
                "prompt and output together; shorten it, or raise max_model_len or num_blocks"
            )
        self._check_vocabulary("prompt", token_ids)

    def _check_params(self, params: SamplingParams) -> None:
        self._check_vocabulary("allowed_token_ids", params.allowed_token_ids or ())
        self._check_vocabulary("forced_token_ids", params.forced_token_ids or ())
        if params.max_draft is not None and params.max_draft > self.max_draft:
            raise UserError(
                f"max_draft={params.max_draft} is above the engine's {self.max_draft}; lower it, or build the "
                "engine with a larger max_draft"
            )

    def _check_vocabulary(self, name: str, token_ids: Sequence[int]) -> None:
        vocab_size = self._models.vocab_size
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            raise UserError(f"{name} has a token id outside 0 to {vocab_size - 1}; encode with the target's tokenizer")

    def _class_id(self, service_class: str) -> int:
        if service_class not in self._class_ids and len(self._class_ids) == MAX_CLASSES:
            raise UserError(
                f"service_class={service_class!r} is one more than the {MAX_CLASSES} classes that the controller "
                f"distinguishes, 'default' included; use one of {', '.join(self._class_ids)}"
            )
        return self._class_ids.setdefault(service_class, len(self._class_ids))
