"""Drafting with a small model, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from turbospec import DraftGate
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.draft import Draft
from turbospec_engine.request import Request
from turbospec_engine.runner import ModelRunner, block_table
from turbospec_engine.sampler import SamplingBatch, draw

ORDINARY_TOKENS = 2
"""Most tokens that a draft's first pass computes for a request that drafted in the step before: the target's own token,
and the last draft token if it was accepted."""


class DraftModel:
    """Drafts with a model that has its own KV cache, under the target's block ids.

    The first pass is ragged: it computes the tokens that each request's drafter KV cache lacks: one token or two or,
    after steps without drafts, the whole prompt. Each later pass computes one token for the requests that still draft.
    """

    parallel = False

    def __init__(self, model: PreTrainedModel, num_blocks: int, block_size: int, target_vocab_size: int) -> None:
        self.runner = ModelRunner(model, num_blocks, block_size)
        self.runner.warm_up()
        self.target_vocab_size = target_vocab_size
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self.max_model_len: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    def lag_tokens(self, request: Request) -> int:
        return max(0, request.num_tokens - request.draft_computed - ORDINARY_TOKENS)

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        size, longest = len(requests), int(lengths.max())
        rows = np.flatnonzero(lengths)
        drafting = [requests[row] for row in rows.tolist()]
        sampling = SamplingBatch.of(requests)
        num_tokens = np.array([request.num_tokens for request in requests])
        tables = block_table(requests)
        drawn_index = np.zeros((size, longest), np.int64)
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
        query_lens = np.array([request.num_tokens - request.draft_computed for request in drafting])
        fed = np.concatenate([request.tokens[request.draft_computed : request.num_tokens] for request in drafting])
        for depth in range(longest):
            context_lens = num_tokens[rows] + depth
            batch = RaggedBatch(query_lens, context_lens, tables[rows])
            # The target's embedding may be padded to more tokens.
            input_ids = torch.from_numpy(np.minimum(fed, self.vocab_size - 1)).to(self.runner.device)
            logits = self._fit(self.runner.forward(input_ids, batch, np.cumsum(query_lens) - 1))
            tokens, confidence, drawn = _choose(logits, sampling, rows, draws[:, depth])
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
            rows, fed = rows[more], tokens[more]
            query_lens = np.ones(len(rows), np.int64)
            if not len(rows):
                break

        for request, proposed in zip(requests, draft.proposed.tolist(), strict=True):
            if proposed:
                # The last token of a draft is not computed by the drafter.
                request.draft_computed = request.num_tokens + proposed - 1
        draft.distributions = torch.cat(distributions) if distributions else None
        # Narrower where a gate ended all drafts early.
        draft.confidence = confidences[:, : len(draft_rows)].copy()
        draft.draft_rows = np.array(draft_rows)
        return draft

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """Match the target's vocabulary size: checkpoints with one tokenizer may pad their embeddings differently."""
        lacking = self.target_vocab_size - logits.shape[1]
        if lacking <= 0:
            return logits[:, : self.target_vocab_size]
        return torch.nn.functional.pad(logits, (0, lacking), value=-torch.inf)


def _choose(
    logits: torch.Tensor, sampling: SamplingBatch, rows: IntArray, draws: FloatArray
) -> tuple[IntArray, FloatArray, torch.Tensor | None]:
    """Next draft tokens (r,), largest probabilities of their distributions (r,), and distributions of sampled rows
    (s, vocab)."""
    greedy = sampling.greedy[rows]
    if greedy.all():
        best, tokens = logits.max(-1)
        confidence = (best - logits.logsumexp(-1)).exp().clamp(max=1.0)  # rounding may bring it above
        return tokens.cpu().numpy(), confidence.double().cpu().numpy(), None
    if not greedy.any():
        probabilities = sampling.draft_probabilities(logits, rows)
        tokens = draw(probabilities, draws[rows])
        return tokens.cpu().numpy(), probabilities.amax(-1).double().cpu().numpy(), probabilities
    tokens, confidence = np.zeros(len(rows), np.int64), np.zeros(len(rows))
    probabilities = None
    for part in (greedy, ~greedy):
        at = torch.from_numpy(np.flatnonzero(part)).to(logits.device)
        tokens[part], confidence[part], probabilities = _choose(logits[at], sampling, rows[part], draws)
    return tokens, confidence, probabilities
