"""Sampling: processed distributions, draws, and rejection sampling, which verifies drafts losslessly.

Everything is vectorised over the ragged batch. A token is drawn by inverting the cumulative distribution at a uniform
number from the request's own generator. With the same drafts and prefill chunks, the other requests of the batch
therefore cannot change a request's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from turbospec.interface import BoolArray, FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.request import Request
from turbospec_engine.transfer import on_device

CANDIDATES = 512
"""Most likely tokens among which the top-p cut-off is searched first: sorting the whole vocabulary takes far longer."""

LEAST_DRAFT_TEMPERATURE = 1e-12
"""Keeps logits finite in float32 when they are divided by it; tokens are then drawn as good as greedily."""


@dataclass(slots=True, frozen=True)
class SamplingBatch:
    """The sampling parameters of some requests as arrays of shape (n,)."""

    temperature: FloatArray
    top_k: IntArray
    top_p: FloatArray

    @classmethod
    def of(cls, requests: Sequence[Request]) -> SamplingBatch:
        params = [request.params for request in requests]
        return cls(
            np.array([p.temperature for p in params], np.float64),
            np.array([p.top_k for p in params], np.int64),
            np.array([p.top_p for p in params], np.float64),
        )

    @property
    def greedy(self) -> BoolArray:
        return self.temperature == 0

    def probabilities(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Distributions p that tokens are drawn from: temperature, then top-k, then top-p.

        Args:
            logits: (m, vocab).
            rows: (m,) the request of each; none of them greedy.

        Returns:
            (m, vocab) probabilities.
        """
        logits = logits / _column(self.temperature[rows], logits)
        top_k, top_p = self.top_k[rows], self.top_p[rows]
        if top_k.any() or (top_p < 1).any():
            logits = _truncated(logits, np.where(top_k > 0, top_k, logits.shape[1]), top_p)
        return logits.softmax(-1)

    def draft_probabilities(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Distributions q that draft tokens are drawn from; arguments and result as for `probabilities`.

        Rejection sampling is lossless for any q. Top-p takes a sort, which does not pay here: a temperature of top_p³
        times the request's had the acceptance rate of the truncated distribution (measured at top-p 0.95 and 0.8).
        """
        temperature = np.maximum(self.temperature * self.top_p**3, LEAST_DRAFT_TEMPERATURE)
        return SamplingBatch(temperature, self.top_k, np.ones_like(self.top_p)).probabilities(logits, rows)


def draw(probabilities: torch.Tensor, uniforms: FloatArray) -> torch.Tensor:
    """Draw one token from each distribution.

    Args:
        probabilities: (m, vocab), not necessarily normalised.
        uniforms: (m,) numbers in [0, 1).

    Returns:
        (m,) token ids, never of a token with probability 0.
    """
    cumulative = probabilities.double().cumsum(-1)
    total = cumulative[:, -1:]
    thresholds = on_device(uniforms, probabilities.device)[:, None] * total
    # Rounding may raise the threshold to the total; the first token that reaches the total is the last possible one.
    return torch.minimum((cumulative <= thresholds).sum(-1), (cumulative < total).sum(-1))


def verify(
    logits: torch.Tensor,
    requests: Sequence[Request],
    draft: Draft,
    accept_draws: FloatArray,
    final_draws: FloatArray,
) -> tuple[IntArray, IntArray]:
    """Rejection sampling: accept drafts from the left and choose the token after them.

    Greedy requests accept the target's own choice. The others accept draft token x with probability min(1, p(x)/q(x)).
    At the first rejection the next token is drawn from the normalised max(0, p - q); without a rejection it is drawn
    from p (the bonus token). The output has the target's distribution (Leviathan, Kalman, Matias: "Fast inference from
    transformers via speculative decoding", ICML 2023).

    Args:
        logits: (sum of 1 + drafted, vocab) the target's logits after each request's newest token and its drafts.
        requests: the n requests.
        draft: what was drafted for them.
        accept_draws: (n, longest draft) uniforms that decide about each draft token.
        final_draws: (n,) uniforms for the token after the accepted ones.

    Returns:
        Accepted draft tokens, shape (n,), and the token after them, shape (n,).
    """
    sampling = SamplingBatch.of(requests)
    lengths = draft.drafted + 1
    starts = np.cumsum(lengths) - lengths
    for row, request in enumerate(requests):
        if request.allowed is not None:
            logits[starts[row] : starts[row] + lengths[row]] += request.allowed
        if request.params.forced_token_ids is not None:
            emitted = request.num_tokens - request.num_prompt_tokens
            forced = request.params.forced_token_ids[emitted : emitted + int(lengths[row])]
            _force(logits[starts[row] : starts[row] + len(forced)], forced)

    accepts = np.zeros(draft.tokens.shape, np.bool_)
    final = np.zeros(len(requests), np.int64)
    drafted_mask = np.arange(draft.tokens.shape[1]) < draft.drafted[:, None]
    greedy = sampling.greedy
    if greedy.any():
        best = logits.argmax(-1).cpu().numpy()
        rows, depths = np.nonzero(drafted_mask & greedy[:, None])
        accepts[rows, depths] = draft.tokens[rows, depths] == best[starts[rows] + depths]
        if greedy.all():
            accepted = _run_length(accepts)
            return accepted, best[starts + accepted]
        final[greedy] = best[(starts + _run_length(accepts))[greedy]]

    drawn = np.flatnonzero(~greedy)
    offsets = np.concatenate([np.arange(starts[row], starts[row] + lengths[row]) for row in drawn])
    target = sampling.probabilities(logits[on_device(offsets, logits.device)], np.repeat(drawn, lengths[drawn]))
    target_starts = np.zeros(len(requests), np.int64)
    target_starts[drawn] = np.cumsum(lengths[drawn]) - lengths[drawn]
    rows, depths = np.nonzero(drafted_mask & ~greedy[:, None])
    if len(rows):
        tokens = draft.tokens[rows, depths]
        p = _pick(target, target_starts[rows] + depths, tokens)
        q = draft.probabilities_of(rows, depths, tokens)
        accepts[rows, depths] = accept_draws[rows, depths] * q < p
    accepted = _run_length(accepts)

    after = target[on_device(target_starts[drawn] + accepted[drawn], target.device)]
    rejected = np.flatnonzero(accepted[drawn] < draft.drafted[drawn])
    if len(rejected):
        at = on_device(rejected, after.device)
        residual = draft.residual(after[at], drawn[rejected], accepted[drawn[rejected]])
        # Where p equals q up to rounding, the residual is empty and the rejection was a rounding error.
        empty = residual.sum(-1, keepdim=True) <= 0
        after[at] = torch.where(empty, after[at], residual)
    final[drawn] = draw(after, final_draws[drawn]).cpu().numpy()
    return accepted, final


def _force(logits: torch.Tensor, tokens: Sequence[int]) -> None:
    """Leave one possible token in each of the (m, vocab) logits, in place."""
    logits.fill_(-torch.inf)
    logits[torch.arange(len(tokens), device=logits.device), torch.tensor(tokens, device=logits.device).long()] = 0.0


def _run_length(accepts: BoolArray) -> IntArray:
    """(n,) leading True values of each row."""
    return np.logical_and.accumulate(accepts, axis=1).sum(1)


def _truncated(logits: torch.Tensor, top_k: IntArray, top_p: FloatArray) -> torch.Tensor:
    """Logits with -inf for the tokens that top-k, then top-p, drop; tokens tied with the last one kept are kept."""
    vocab = logits.shape[1]
    # top_p = 1 keeps every token, whatever the sum rounds to.
    limit = np.where(top_p < 1, top_p, np.inf)
    rows = np.flatnonzero((top_k < vocab) | (top_p < 1))
    cutoffs = torch.full((len(logits), 1), -torch.inf, device=logits.device)
    for candidates in (min(CANDIDATES, vocab), vocab):
        at = on_device(rows, logits.device)
        theirs = logits[at]
        ordered = theirs.topk(candidates).values
        ranked_out = torch.arange(candidates, device=logits.device) >= _column(top_k[rows].astype(np.float64), ordered)
        ordered.masked_fill_(ranked_out, -torch.inf)
        within = on_device(top_k[rows] <= candidates, logits.device)
        total = torch.where(within, ordered.logsumexp(-1), theirs.logsumexp(-1))
        probabilities = (ordered - total[:, None]).exp()
        mass = probabilities.cumsum(-1)
        # The first token is always kept, also where top-p rounds to 0.
        last = ((mass - probabilities < _column(limit[rows], ordered)).sum(-1) - 1).clamp_min(0)
        last = torch.minimum(last, on_device(top_k[rows] - 1, logits.device))
        cutoffs[at] = ordered.gather(1, last[:, None])
        # Where top-k exceeds the candidates, neither its cut-off nor that of top-p is known yet.
        beyond = on_device((top_k[rows] > candidates) & (top_k[rows] < vocab), logits.device)
        unsettled = beyond | (~within & (mass[:, -1] < _column(limit[rows], ordered)[:, 0]))
        rows = rows[unsettled.cpu().numpy()]
        if candidates == vocab or not len(rows):
            break
    return logits.masked_fill(logits < cutoffs, -torch.inf)


def _pick(matrix: torch.Tensor, rows: IntArray, columns: IntArray) -> FloatArray:
    index = (on_device(rows, matrix.device), on_device(columns, matrix.device))
    return matrix[index].double().cpu().numpy()


def _column(values: FloatArray, like: torch.Tensor) -> torch.Tensor:
    return on_device(values, like.device).to(like.dtype)[:, None]
