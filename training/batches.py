"""Batches of token windows whose order is a pure function of the seed and the step number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class Windows:
    """Non-overlapping windows of ``length + 1`` tokens over several streams, reshuffled every epoch.

    A batch depends only on ``(seed, step)``, so that a resumed run sees the same batches.
    """

    def __init__(self, streams: Sequence[np.ndarray], length: int, batch: int, seed: int) -> None:
        self.length = length
        self.batch = batch
        self.seed = seed
        joined = np.concatenate(streams).astype(np.int64)
        count = (len(joined) - 1) // length
        self.tokens = torch.from_numpy(joined[: count * length + 1])
        self.count = count
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def _window(self, position: int) -> torch.Tensor:
        epoch, index = divmod(position, self.count)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        start = int(self._order[index]) * self.length
        return self.tokens[start : start + self.length + 1]

    def at(self, step: int) -> torch.Tensor:
        """Token ids of one step, shape ``[batch, length + 1]``: inputs are ``[:, :-1]``, labels ``[:, 1:]``."""
        first = step * self.batch
        return torch.stack([self._window(position) for position in range(first, first + self.batch)])
