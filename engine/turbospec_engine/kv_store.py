"""The KV cache of one model, in blocks."""

from __future__ import annotations

import torch


class KVStore:
    """Keys and values of every layer, addressed by slot = block id · block size + offset in the block.

    `keys[layer]` and `values[layer]` have shape (slots, kv_heads, head_dim).
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.dtype = dtype
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_dim)
        # Zeros, because masked attention multiplies slots that were never written by 0, and 0 · NaN is NaN.
        self.keys = torch.zeros(shape, dtype=dtype, device=device).unbind(0)
        self.values = torch.zeros(shape, dtype=dtype, device=device).unbind(0)

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the keys and values, shape (tokens, kv_heads, head_dim), of tokens at `slots`, shape (tokens,)."""
        self.keys[layer].index_copy_(0, slots, key)
        self.values[layer].index_copy_(0, slots, value)
