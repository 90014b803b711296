"""The choice of draft tokens from a drafter's logits."""

from __future__ import annotations

import numpy as np
import torch

from turbospec.interface import FloatArray, IntArray
from turbospec_engine.sampler import SamplingBatch, draw
from turbospec_engine.transfer import on_device


def choose(
    logits: torch.Tensor, sampling: SamplingBatch, rows: IntArray, draws: FloatArray
) -> tuple[IntArray, FloatArray, torch.Tensor | None]:
    """Choose one draft token from each distribution.

    Args:
        logits: (m, vocab).
        sampling: the requests' parameters.
        rows: (m,) the request of each.
        draws: (m,) uniforms, ignored for greedy requests.

    Returns:
        Tokens (m,), the largest probability of each distribution (m,), and the distributions (s, vocab) of those that
        belong to requests that sample, in their order; None without any.
    """
    greedy = sampling.greedy[rows]
    if greedy.all():
        best, tokens = logits.max(-1)
        confidence = (best - logits.logsumexp(-1)).exp().clamp(max=1.0)  # rounding may bring it above
        return tokens.cpu().numpy(), confidence.double().cpu().numpy(), None
    if not greedy.any():
        probabilities = sampling.draft_probabilities(logits, rows)
        tokens = draw(probabilities, draws)
        return tokens.cpu().numpy(), probabilities.amax(-1).double().cpu().numpy(), probabilities
    tokens, confidence = np.zeros(len(rows), np.int64), np.zeros(len(rows))
    probabilities = None
    for part in (greedy, ~greedy):
        at = on_device(np.flatnonzero(part), logits.device)
        tokens[part], confidence[part], probabilities = choose(logits[at], sampling, rows[part], draws[part])
    return tokens, confidence, probabilities
