"""Drafting token by token: what is common to drafters that run one pass per draft position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from turbospec import DraftGate
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.draft import Draft
from turbospec_engine.drafter.catch_up import catch_up, missing_tokens, tokens_to_read
from turbospec_engine.drafter.choice import choose
from turbospec_engine.hidden_states import HiddenStates
from turbospec_engine.request import Request
from turbospec_engine.runner import block_table
from turbospec_engine.sampler import SamplingBatch


class SequentialDrafter(ABC):
    """Drafts with a model that has a KV cache, in the blocks `request.draft_block_ids`.

    The first pass is ragged: it computes what each request's drafter KV cache lacks: the tokens since its last draft
    or, after steps without drafts, up to the whole prompt, of which earlier passes compute what is too much for one.
    Each later pass computes one token for the requests that still draft.

    Args:
        skipped: tokens at a request's beginning that are not fed. The cache holds token i + skipped at position i.
        ordinary_tokens: most tokens that the first pass computes for a request that drafted in the step before.
        keeps_drafts: whether what later passes write to the KV cache stays valid for accepted draft tokens; otherwise
            the next draft's first pass computes them again.
        max_pass_tokens: most tokens of a pass that catches up.
    """

    parallel = False
    calls_gate = True
    hidden_states: HiddenStates | None = None
    max_model_len: int | None

    def __init__(self, *, skipped: int, ordinary_tokens: int, keeps_drafts: bool, max_pass_tokens: int) -> None:
        self._skipped = skipped
        self._ordinary_tokens = ordinary_tokens
        self._keeps_drafts = keeps_drafts
        self._max_pass_tokens = max_pass_tokens

    @abstractmethod
    def _logits(
        self, tokens: IntArray, batch: RaggedBatch, target_tables: IntArray, continued: IntArray | None
    ) -> torch.Tensor:
        """Run one pass.

        Args:
            tokens: (t,) the tokens of all rows, end to end.
            batch: the rows.
            target_tables: (rows, blocks) ids of the rows' blocks in the target's KV cache.
            continued: (rows,) index of each row among those of the pass before; None in a draft's first pass.

        Returns:
            (rows, vocabulary of the target) logits after each row's last token.
        """

    def lag_tokens(self, request: Request) -> int:
        missing = request.num_tokens - self._skipped - request.draft_computed
        return max(0, missing - self._ordinary_tokens)

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        size, longest = len(requests), int(lengths.max())
        rows = np.flatnonzero(lengths)
        drafting = [requests[row] for row in rows.tolist()]
        sampling = SamplingBatch.of(requests)
        fed_tokens = np.array([request.num_tokens for request in requests]) - self._skipped
        tables = block_table([request.draft_block_ids for request in requests])
        target_tables = block_table([request.block_ids for request in requests])
        drawn_index = np.full((size, longest), -1)
        confidences = np.full((size, longest), np.nan)
        draft = Draft(
            tokens=np.zeros((size, longest), np.int64),
            proposed=np.zeros(size, np.int64),
            drafted=np.zeros(size, np.int64),
            distribution_index=drawn_index,
            catch_up_tokens=sum(self.lag_tokens(request) for request in drafting),
        )
        distributions: list[torch.Tensor] = []
        draft_rows: list[int] = []
        num_drawn = 0
        continued: IntArray | None = None
        catch_up(drafting, missing_tokens(drafting, self._skipped), self._max_pass_tokens, self._compute)
        query_lens = missing_tokens(drafting, self._skipped)
        fed = tokens_to_read(drafting, query_lens, self._skipped)
        for depth in range(longest):
            context_lens = fed_tokens[rows] + depth
            batch = RaggedBatch(query_lens, context_lens, tables[rows])
            logits = self._logits(fed, batch, target_tables[rows], continued)
            tokens, confidence, drawn = choose(logits, sampling, rows, draws[rows, depth])
            if drawn is not None:
                distributions.append(drawn)
                drawn_index[rows[~sampling.greedy[rows]], depth] = num_drawn + np.arange(len(drawn))
                num_drawn += len(drawn)
            draft.tokens[rows, depth] = tokens
            confidences[rows, depth] = confidence
            draft.proposed[rows] += 1
            draft_rows.append(len(rows))
            draft.context_tokens += int(context_lens.sum())

            keep, more = np.ones(len(rows), np.bool_), lengths[rows] > depth + 1
            if gate is not None:
                keep, wanted = gate.advance(rows, confidence)
                more &= keep & wanted
            draft.drafted[rows] += keep
            rows, fed, continued = rows[more], tokens[more], np.flatnonzero(more)
            query_lens = np.ones(len(rows), np.int64)
            if not len(rows):
                break

        for request, proposed in zip(requests, draft.proposed.tolist(), strict=True):
            if proposed:
                # The last token of a draft is not computed by the drafter.
                kept = proposed - 1 if self._keeps_drafts else 0
                request.draft_computed = request.num_tokens - self._skipped + kept
        draft.distributions = torch.cat(distributions) if distributions else None
        # Narrower where a gate ended all drafts early.
        draft.confidence = confidences[:, : len(draft_rows)].copy()
        draft.draft_rows = np.array(draft_rows)
        return draft

    def _compute(self, requests: Sequence[Request], batch: RaggedBatch, target_tables: IntArray) -> None:
        """Run a pass whose logits nobody needs."""
        self._logits(tokens_to_read(requests, batch.query_lens, self._skipped), batch, target_tables, None)
