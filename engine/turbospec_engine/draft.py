"""The drafts of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from turbospec.interface import FloatArray, IntArray


@dataclass(slots=True)
class Draft:
    """Draft tokens of a batch's n requests, one row each, and the drafter's work on them."""

    tokens: IntArray
    """(n, longest) draft token ids; undefined past `proposed`."""
    proposed: IntArray
    """(n,) tokens that the drafter computed, at most the planned draft length."""
    drafted: IntArray
    """(n,) of these, tokens to verify: a gate may drop the last one, a selection any at the end."""
    distributions: torch.Tensor | None = None
    """(m, vocab) distributions q that sampled draft tokens were drawn from; None where drafting is deterministic."""
    distribution_index: IntArray | None = None
    """(n, longest) row of `distributions` for each sampled draft token."""
    confidence: FloatArray | None = None
    """(n, longest proposed) largest probability of each draft distribution, NaN past `proposed`; None without one."""
    draft_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(passes,) requests in each drafter pass."""
    context_tokens: int = 0
    """KV tokens that the drafter's passes read, summed over passes and rows."""
    catch_up_tokens: int = 0
    """Drafter KV lag that the first pass caught up, tokens."""

    @classmethod
    def empty(cls, size: int) -> Draft:
        """The drafts of `size` requests that draft nothing."""
        return cls(np.zeros((size, 0), np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))

    def take(self, rows: IntArray) -> Draft:
        """The drafts of some of the requests, in the order given."""
        index = None if self.distribution_index is None else self.distribution_index[rows]
        confidence = None if self.confidence is None else self.confidence[rows]
        return Draft(self.tokens[rows], self.proposed[rows], self.drafted[rows], self.distributions, index, confidence)

    def padded(self, extra: int) -> Draft:
        """The same drafts, with `extra` requests appended that draft nothing."""
        rows = np.concatenate([np.arange(len(self.drafted)), np.zeros(extra, np.int64)])
        if not len(self.drafted):
            return Draft.empty(extra)
        draft = self.take(rows)
        draft.proposed[len(self.drafted) :] = draft.drafted[len(self.drafted) :] = 0
        if draft.confidence is not None:
            draft.confidence[len(self.drafted) :] = np.nan
        return draft

    def probabilities_of(self, rows: IntArray, depths: IntArray, tokens: IntArray) -> FloatArray:
        """(m,) probability q(x) of each of these draft tokens; 1 where drafting is deterministic."""
        if self.distributions is None or self.distribution_index is None:
            return np.ones(len(rows))
        device = self.distributions.device
        at = torch.from_numpy(self.distribution_index[rows, depths]).to(device)
        return self.distributions[at, torch.from_numpy(tokens).to(device)].double().cpu().numpy()

    def residual(self, target: torch.Tensor, rows: IntArray, depths: IntArray) -> torch.Tensor:
        """(m, vocab) max(0, p - q), not normalised: what a token is drawn from after a rejection.

        Args:
            target: (m, vocab) the target's distributions p at the rejected positions.
            rows: (m,) the requests.
            depths: (m,) their rejected draft positions.
        """
        if self.distributions is None or self.distribution_index is None:
            tokens = torch.from_numpy(self.tokens[rows, depths]).to(target.device)
            return target.scatter(1, tokens[:, None], 0.0)
        at = torch.from_numpy(self.distribution_index[rows, depths]).to(target.device)
        return (target - self.distributions[at]).clamp_min_(0.0)
