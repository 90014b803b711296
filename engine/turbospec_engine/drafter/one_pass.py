"""Drafting all tokens in one pass: what is common to drafters with a head that does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from turbospec import DraftGate, UserError
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.draft import Draft
from turbospec_engine.drafter.catch_up import catch_up, missing_tokens
from turbospec_engine.drafter.choice import choose
from turbospec_engine.head import Head
from turbospec_engine.kv_store import KVStore
from turbospec_engine.request import Request
from turbospec_engine.sampler import SamplingBatch
from turbospec_engine.transfer import on_device

HeadT = TypeVar("HeadT", bound=Head)


class OnePassDrafter(ABC, Generic[HeadT]):
    """Drafts with a head that reads the target's hidden states of every token, and a mask for each draft token.

    Each draft token is drawn from a distribution that does not depend on the draft tokens before it. What a pass writes
    to the KV cache for mask tokens is never read again: after a draft, the cache holds all tokens but the newest.

    Args:
        head: the head.
        target: the model whose embedding and output layer it uses.
        store: the head's KV cache.
        num_blocks: blocks of the target's KV cache.
        block_size: tokens in a block of the target.
        max_draft: longest draft of the engine.
        max_pass_tokens: most tokens of a pass that catches up.

    Raises:
        UserError: the head's logits are not finite.
    """

    parallel = True
    calls_gate = False

    def __init__(
        self,
        head: HeadT,
        target: PreTrainedModel,
        store: KVStore,
        *,
        num_blocks: int,
        block_size: int,
        max_draft: int,
        max_pass_tokens: int,
    ) -> None:
        self.head = head
        self.embed = target.get_input_embeddings()
        self.store = store
        self.hidden_states = head.hidden_states(target, num_blocks, block_size)
        self.max_model_len = head.config.max_position_embeddings
        self._norm, self._output = head.norm, cast("nn.Module", target.get_output_embeddings())
        # After a draft that was accepted: its tokens and the target's own.
        self._ordinary_tokens = 1 + max_draft
        self._max_pass_tokens = max_pass_tokens
        with torch.inference_mode():
            # Not token 0, which may be padding, with an embedding of zeros.
            if not all(torch.isfinite(logits).all() for logits in self._trials(head.config.vocab_size - 1)):
                raise UserError(
                    f"{head.name_or_path}: {head.config.kind} that gives no finite logits in {head.dtype}; use another "
                    "dtype or checkpoint"
                )

    @abstractmethod
    def _draft_logits(self, drafting: Sequence[Request], planned: IntArray) -> tuple[torch.Tensor, int]:
        """Run the pass.

        Args:
            drafting: the requests.
            planned: (rows,) their draft lengths, all above 0.

        Returns:
            (draft tokens, vocabulary) logits in float32, row by row, and the KV tokens that the pass read.
        """

    @abstractmethod
    def _compute(self, requests: Sequence[Request], batch: RaggedBatch, target_tables: IntArray) -> None:
        """Store the keys and values of tokens that the target has computed.

        Args:
            requests: the requests.
            batch: the next tokens that the head's KV cache lacks of each.
            target_tables: (rows, blocks) ids of the rows' blocks in the target's KV cache.
        """

    @abstractmethod
    def _trials(self, token: int) -> Iterator[torch.Tensor]:
        """Logits of the shortest passes that have each kind of position, after a token at the first position."""

    def lag_tokens(self, request: Request) -> int:
        return max(0, request.num_tokens - 1 - request.draft_computed - self._ordinary_tokens)

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        size, longest = len(requests), int(lengths.max())
        rows = np.flatnonzero(lengths)
        drafting, planned = [requests[row] for row in rows.tolist()], lengths[rows]
        catch_up_tokens = sum(self.lag_tokens(request) for request in drafting)
        catch_up(drafting, missing_tokens(drafting, 1), self._max_pass_tokens, self._compute)
        logits, context_tokens = self._draft_logits(drafting, planned)

        # Row and draft position of each draft token.
        at, depths = np.repeat(rows, planned), places_in_rows(planned)
        sampling = SamplingBatch.of(requests)
        drawn_index = np.full((size, longest), -1)
        confidence = np.full((size, longest), np.nan)
        draft = Draft(
            tokens=np.zeros((size, longest), np.int64),
            proposed=lengths.copy(),
            drafted=lengths.copy(),
            distribution_index=drawn_index,
            confidence=confidence,
            draft_rows=np.array([lengths.sum()]),
            context_tokens=context_tokens,
            catch_up_tokens=catch_up_tokens,
        )
        draft.tokens[at, depths], confidence[at, depths], draft.distributions = choose(
            logits, sampling, at, draws[at, depths]
        )
        sampled = ~sampling.greedy[at]
        drawn_index[at[sampled], depths[sampled]] = np.arange(np.count_nonzero(sampled))
        for request in drafting:
            request.draft_computed = request.num_tokens - 1
        return draft

    def _logits_of(self, hidden: torch.Tensor, at: IntArray) -> torch.Tensor:
        """(m, vocabulary) logits in float32 of the head's hidden states, (tokens, width), at some of the tokens."""
        return self._output(self._norm(hidden[on_device(at, hidden.device)])).float()


def places_in_rows(lengths: IntArray) -> IntArray:
    """(sum of lengths,) 0, 1, … in each row, the rows end to end."""
    return np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
