"""The drafts of one step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from turbospec.interface import FloatArray, IntArray
from turbospec_engine.transfer import on_device


@dataclass(slots=True)
class Draft:
    """Draft tokens of a batch's n requests, one row each, and the drafter's work on them."""

    tokens: IntArray
    """(n, longest) draft token ids; undefined past `proposed`."""
    proposed: IntArray
    """(n,) tokens of each draft: those that the drafter computed, at most the planned draft length, and copies."""
    drafted: IntArray
    """(n,) of these, tokens to verify: a gate may drop the last one, a selection any at the end."""
    distributions: torch.Tensor | None = None
    """(m, vocab) distributions q that sampled draft tokens were drawn from; None where drafting is deterministic."""
    distribution_index: IntArray | None = None
    """(n, longest) row of `distributions` for each sampled draft token; -1 for one that follows deterministically,
    whose distribution is a point mass."""
    confidence: FloatArray | None = None
    """(n, longest proposed) largest probability of each draft distribution, 1 of a point mass, NaN past `proposed`;
    None where the drafter reports none."""
    draft_rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(passes,) requests in each drafter pass, or draft tokens where one pass makes them all."""
    context_tokens: int = 0
    """KV tokens that the drafter's passes read, summed over passes and the requests in each."""
    catch_up_tokens: int = 0
    """Drafter KV lag that the first pass caught up, tokens."""

    @classmethod
    def empty(cls, size: int) -> Draft:
        """The drafts of `size` requests that draft nothing."""
        return cls(np.zeros((size, 0), np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))

    def add_copies(self, rows: IntArray, tokens: IntArray, lengths: IntArray) -> None:
        """Add what a look-up found after the drafts of some requests. The copies are point masses, all to verify.

        Args:
            rows: (r,) the requests; their drafts are empty, or are verified in full.
            tokens: (r, longest) token ids, undefined past `lengths`.
            lengths: (r,) tokens of each.
        """
        copied = np.arange(tokens.shape[1]) < lengths[:, None]
        at, place = np.nonzero(copied)
        at, columns = rows[at], place + self.drafted[rows][at]
        longest = int(columns.max(initial=-1)) + 1
        self.tokens = _widened(self.tokens, longest, 0)
        self.tokens[at, columns] = tokens[copied]
        self.drafted[rows] += lengths
        self.proposed[rows] = self.drafted[rows]
        if self.distribution_index is not None:
            index = self.distribution_index = _widened(self.distribution_index, longest, -1)
            index[at, columns] = -1
        if self.confidence is not None:
            confidence = self.confidence = _widened(self.confidence, longest, np.nan)
            confidence[at, columns] = 1.0

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
        probabilities = np.ones(len(rows))
        if self.distributions is not None and self.distribution_index is not None:
            at = self.distribution_index[rows, depths]
            drawn = at >= 0
            device = self.distributions.device
            picked = on_device(at[drawn], device), on_device(tokens[drawn], device)
            probabilities[drawn] = self.distributions[picked].double().cpu().numpy()
        return probabilities

    def residual(self, target: torch.Tensor, rows: IntArray, depths: IntArray) -> torch.Tensor:
        """(m, vocab) max(0, p - q), not normalised: what a token is drawn from after a rejection.

        Args:
            target: (m, vocab) the target's distributions p at the rejected positions.
            rows: (m,) the requests.
            depths: (m,) their rejected draft positions.
        """
        tokens = on_device(self.tokens[rows, depths], target.device)
        # Of a point mass: p without the token.
        residual = target.scatter(1, tokens[:, None], 0.0)
        if self.distributions is not None and self.distribution_index is not None:
            at = self.distribution_index[rows, depths]
            drawn = on_device(np.flatnonzero(at >= 0), target.device)
            q = self.distributions[on_device(at[at >= 0], target.device)]
            residual[drawn] = (target[drawn] - q).clamp_min_(0.0)
        return residual


def _widened(table: np.ndarray, width: int, fill: float) -> np.ndarray:
    """A table of shape (n, at least `width`), new columns filled."""
    return np.pad(table, ((0, 0), (0, max(0, width - table.shape[1]))), constant_values=fill)
