"""What a drafter proposed in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from turbospec.interface import FloatArray, IntArray


@dataclass(slots=True)
class Draft:
    """Draft tokens of a batch of n requests, and what making them took."""

    tokens: IntArray
    """(n, longest) draft tokens; columns past `proposed` are undefined."""
    proposed: IntArray
    """(n,) tokens that the drafter computed."""
    drafted: IntArray
    """(n,) of these, to be verified."""
    distributions: torch.Tensor | None = None
    """(m, vocab) the distributions that sampled draft tokens were drawn from; None where drafting is deterministic."""
    distribution_index: IntArray | None = None
    """(n, longest) row of `distributions` for each draft token that was sampled."""
    confidence: FloatArray | None = None
    """(n, max proposed) largest probability of each draft distribution, NaN past `proposed`."""
    draft_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(passes,) requests in each drafter pass."""
    context_tokens: int = 0
    """KV tokens that the drafter's passes attended to, summed over passes and rows."""
    catch_up_tokens: int = 0
    """Stale tokens that the first pass computed beyond those every step feeds it."""

    @classmethod
    def none(cls, size: int) -> Draft:
        return cls(np.zeros((size, 0), np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))

    def take(self, rows: IntArray) -> Draft:
        """The drafts of some of the requests, in the order given."""
        index = None if self.distribution_index is None else self.distribution_index[rows]
        confidence = None if self.confidence is None else self.confidence[rows]
        return Draft(self.tokens[rows], self.proposed[rows], self.drafted[rows], self.distributions, index, confidence)

    def padded(self, extra: int) -> Draft:
        """The same drafts with `extra` requests appended that drafted nothing."""
        rows = np.concatenate([np.arange(len(self.drafted)), np.zeros(extra, np.int64)])
        if not len(self.drafted):
            return Draft.none(extra)
        draft = self.take(rows)
        draft.proposed[len(self.drafted) :] = draft.drafted[len(self.drafted) :] = 0
        if draft.confidence is not None:
            draft.confidence[len(self.drafted) :] = np.nan
        return draft

    def probabilities_of(self, rows: IntArray, depths: IntArray, tokens: IntArray) -> FloatArray:
        """(m,) probability with which the drafter drew each of these draft tokens."""
        if self.distributions is None or self.distribution_index is None:
            return np.ones(len(rows))
        device = self.distributions.device
        at = torch.from_numpy(self.distribution_index[rows, depths]).to(device)
        return self.distributions[at, torch.from_numpy(tokens).to(device)].double().cpu().numpy()

    def residual(self, target: torch.Tensor, rows: IntArray, depths: IntArray) -> torch.Tensor:
        """max(0, p - q), not normalised: what is left of the target's distributions (m, vocab) after a rejection."""
        if self.distributions is None or self.distribution_index is None:
            tokens = torch.from_numpy(self.tokens[rows, depths]).to(target.device)
            return target.scatter(1, tokens[:, None], 0.0)
        at = torch.from_numpy(self.distribution_index[rows, depths]).to(target.device)
        return (target - self.distributions[at]).clamp_min_(0.0)
