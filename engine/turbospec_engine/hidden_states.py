"""Hidden states of some of the target's layers, kept for a drafter that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from turbospec.interface import IntArray
from turbospec_engine.attention import RaggedBatch


class HiddenStates:
    """The hidden states that enter some of the target's layers, addressed by the slots of its KV cache.

    They stay as long as a request's KV blocks. A drafter that was idle for some steps finds here what it has missed.

    Args:
        layers: the layers, counted from 0.
        width: size of one layer's state.
        num_blocks: blocks of the KV cache.
        block_size: tokens in a block.
    """

    def __init__(
        self,
        layers: Sequence[int],
        width: int,
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = tuple(layers)
        self.block_size = block_size
        self._states = torch.zeros(num_blocks, block_size, len(self.layers) * width, dtype=dtype, device=device)

    def write(self, slots: tuple[torch.Tensor, torch.Tensor], entering: Sequence[torch.Tensor]) -> None:
        """Store the states of a pass.

        Args:
            slots: (tokens,) block of each token, and (tokens,) its place there.
            entering: (1, tokens, width) for each of `layers`.
        """
        self._states[slots] = torch.cat([states[0] for states in entering], dim=-1)

    def read(self, batch: RaggedBatch, tables: IntArray) -> torch.Tensor:
        """(tokens, layers · width) states of a drafter's pass, the layers side by side.

        Args:
            batch: the pass.
            tables: (rows, blocks) ids of its rows' blocks in the target's KV cache.
        """
        return self._states[replace(batch, block_tables=tables).slots(self.block_size, self._states.device)]
