"""Hugging Face `generate`: a policy chooses the length of every draft of assisted generation.

    attach(model, load_controller("adaptive"))
    model.generate(**inputs, assistant_model=drafter, max_new_tokens=256)

`generate` makes a `CandidateGenerator` for each call. An attached model gets one that asks the controller before it
drafts, and reports to it after the target has verified. What the drafter's settings name as the number of tokens
(`num_assistant_tokens`, `prompt_lookup_num_tokens`) becomes the longest draft.
"""

# Drafts are extended and cut by functions that transformers keeps private, as it does the choice of the drafter.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import time
from itertools import count
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    CandidateGenerator,
    PromptLookupCandidateGenerator,
    _prepare_attention_mask,
    _prepare_token_type_ids,
)

from turbospec.controller import Controller
from turbospec.errors import UserError
from turbospec.interface import MAX_DRAFT_LENGTH, Phase, StepOutcome, StepView

__all__ = ["attach", "detach"]

CHOICE = "_get_candidate_generator"
"""The method with which `generate` chooses a candidate generator."""
LEAST_PASS = 2
"""Tokens that an assistant's first pass computes in any case: its cache never holds the last two of a text."""


def attach(model: PreTrainedModel, controller: Controller) -> None:
    """Let a controller choose the draft lengths of `model.generate`, in place of one that was attached before.

    The controller keeps what it has learnt from call to call. Calls without an assistant model or prompt look-up are as
    they were. Not thread-safe: one call of `generate` at a time.

    Args:
        model: the target.
        controller: of this model alone, attached once: step and request numbers begin at 0 with every `attach`.

    Raises:
        UserError: this version of transformers has no such method; from `generate`: a drafter that has no
            settable draft length, or a longest draft that no controller takes.
    """
    choose = getattr(type(model), CHOICE, None)
    if choose is None:
        raise UserError(f"{type(model).__name__} has no `{CHOICE}`; use a generative model and transformers 5")
    steps, requests = count(), count()

    def choose_controlled(*arguments: Any, **keywords: Any) -> CandidateGenerator:
        drafter = choose(model, *arguments, **keywords)
        longest = keywords["generation_config"].max_length
        return ControlledCandidateGenerator(drafter, controller, steps, request_id=next(requests), max_length=longest)

    setattr(model, CHOICE, choose_controlled)


def detach(model: PreTrainedModel) -> None:
    """Undo `attach`: the draft lengths are those of the drafter's own settings again."""
    vars(model).pop(CHOICE, None)


class ControlledCandidateGenerator(CandidateGenerator):
    """One call of `generate`, one request: drafts as many tokens as the controller's plan says.

    The first step computes the prompt and drafts nothing, as in a server, so that the first token is not delayed.

    Args:
        drafter: makes the drafts.
        controller: chooses their lengths.
        steps: counts the steps of all calls.
        request_id: of this call.
        max_length: most tokens of prompt and answer.

    Raises:
        UserError: see `attach`.
    """

    def __init__(
        self,
        drafter: CandidateGenerator,
        controller: Controller,
        steps: count[int],
        *,
        request_id: int,
        max_length: int,
    ) -> None:
        self._drafter: Any = drafter
        self._controller = controller
        self._steps = steps
        self._request_ids = np.array([request_id], np.int64)
        self._max_length = max_length
        # Subclasses draft in tokens of another tokenizer, or with layers of the target: their lengths differ from ours.
        if type(drafter) is AssistedCandidateGenerator:
            self._length_name, self._is_lookup = "num_assistant_tokens", False
        elif type(drafter) is PromptLookupCandidateGenerator:
            self._length_name, self._is_lookup = "num_output_tokens", True
        else:
            raise UserError(
                f"a {type(drafter).__name__} has no draft length to set; use an assistant model with the target's "
                "tokenizer or prompt look-up, or detach the controller"
            )
        self._max_draft = int(getattr(drafter, self._length_name))
        if not 1 <= self._max_draft <= MAX_DRAFT_LENGTH:
            raise UserError(f"{self._length_name} is {self._max_draft}; use 1 to {MAX_DRAFT_LENGTH}")
        self._emitted = 0
        self._drafter_tokens = 0
        """In the drafter's KV cache."""
        self._view: StepView
        """Of the step that runs."""
        self._drafts = torch.empty(0)
        """(d,) its draft."""
        self._began = self._draft_seconds = 0.0

    def get_candidates(self, input_ids: torch.LongTensor, **unused: Any) -> tuple[torch.LongTensor, Any]:
        """Plan a step and draft.

        Args:
            input_ids: (1, s) prompt and answer so far.

        Returns:
            (1, s + d) the same with the draft, and (1, d, vocabulary) logits of a drafter that has some.
        """
        self._began = time.perf_counter()
        tokens = input_ids.shape[1]
        self._view = self._next_view(tokens)
        length = int(self._controller.plan(self._view).draft_lengths[0])
        began = time.perf_counter()
        candidates, logits = input_ids, None
        if length:
            setattr(self._drafter, self._length_name, length)
            if not self._is_lookup and self._drafter_tokens == 0:
                _extend_inputs(self._drafter, tokens)
            candidates, logits = self._drafter.get_candidates(input_ids)
        self._draft_seconds = time.perf_counter() - began if length else 0.0
        self._drafts = candidates[0, tokens:]
        return candidates, logits

    def update_candidate_strategy(self, input_ids: torch.LongTensor, scores: torch.Tensor, num_matches: int) -> None:
        """Report the step that was verified.

        Args:
            input_ids: (1, s) prompt and answer, with the tokens that the step emitted.
            scores: (1, d + 1, vocabulary) of the target.
            num_matches: tokens that the step emitted, less one.
        """
        drafted, emitted = len(self._drafts), int(num_matches) + 1
        # An answer that ends at an accepted draft token has none of the target's own after it.
        ends_in_draft = emitted <= drafted and bool(self._drafts[emitted - 1] == input_ids[0, -1])
        accepted = emitted if ends_in_draft else emitted - 1
        if drafted:
            self._drafter.update_candidate_strategy(input_ids, scores, num_matches)
            if not self._is_lookup:
                # Rejected tokens leave its cache now: if the next steps draft nothing, it would keep some of them.
                self._drafter._update_past_and_masks(input_ids)
                self._drafter_tokens = input_ids.shape[1] - LEAST_PASS
        seconds = time.perf_counter() - self._began
        self._controller.observe(self._outcome(drafted, accepted, emitted, ends_in_draft, seconds))
        self._emitted += emitted

    def _next_view(self, tokens: int) -> StepView:
        """What the controller sees of the next step, for a request of so many tokens."""
        left = self._max_length - tokens
        # The first step emits one token, because it drafts none.
        phase = Phase(min(self._emitted, Phase.DECODE))
        limit = 0 if phase == Phase.PREFILL else min(self._max_draft, left - 1)
        lag = 0 if self._is_lookup else tokens - LEAST_PASS - self._drafter_tokens

        def row(value: int) -> np.ndarray:
            return np.array([max(value, 0)], np.int64)

        return StepView(
            step=next(self._steps),
            now=time.monotonic(),
            request_ids=self._request_ids,
            phase=row(phase),
            context_tokens=row(tokens - 1 if self._emitted else 0),
            emitted_tokens=row(self._emitted),
            tokens_left=row(left),
            drafter_lag_tokens=row(lag),
            class_ids=row(0),
            draft_limits=row(limit),
            max_draft=self._max_draft,
            prefill_tokens=tokens if phase == Phase.PREFILL else 0,
            parallel_drafter=self._is_lookup,
        )

    def _outcome(self, drafted: int, accepted: int, emitted: int, truncated: bool, seconds: float) -> StepOutcome:
        """Of the step that ran, which took so long."""
        view = self._view
        context = int(view.context_tokens[0])
        batched = view.prefill_tokens or 1 + drafted
        draft_rows = [drafted] if self._is_lookup and drafted else [1] * drafted
        read = 0 if self._is_lookup else drafted * (context + 1) + drafted * (drafted - 1) // 2
        return StepOutcome(
            step=view.step,
            request_ids=view.request_ids,
            drafted=np.array([drafted]),
            accepted=np.array([accepted]),
            emitted=np.array([emitted]),
            truncated=np.array([truncated]),
            proposed=np.array([drafted]),
            draft_rows=np.array(draft_rows, np.int64),
            draft_context_tokens=read,
            catch_up_tokens=int(view.drafter_lag_tokens[0]) if drafted else 0,
            tokens_batched=batched,
            padded_tokens=batched,
            prefill_tokens=view.prefill_tokens,
            context_tokens=context + batched,
            draft_seconds=self._draft_seconds,
            verify_seconds=max(seconds - self._draft_seconds, 0.0),
            step_seconds=seconds,
        )


def _extend_inputs(drafter: Any, tokens: int) -> None:
    """Make a drafter's inputs as long as the text; it was made for the prompt, and extends them only after a draft."""
    inputs, encodes = drafter.assistant_kwargs, drafter.assistant_model.config.is_encoder_decoder
    inputs.pop("position_ids", None)  # `generate` makes them from the mask
    drafter.assistant_kwargs = _prepare_token_type_ids(_prepare_attention_mask(inputs, tokens, encodes), tokens)
