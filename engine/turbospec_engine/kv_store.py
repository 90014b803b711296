"""The memory of KV caches, and the caches of the models that share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KVShape:
    """Shape of one token's keys, and of its values."""

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Numbers in one layer."""
        return self.kv_heads * self.head_dim


class KVStore:
    """Keys and values of one model's layers, in blocks.

    Args:
        keys: for each layer (blocks · `block_stride`,) contiguous numbers.
        values: as `keys`.
        shape: of a token.
        block_size: tokens in a block. Their keys fill a block from its beginning; its end may be unused.
        block_stride: numbers in a block.
    """

    def __init__(
        self,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        shape: KVShape,
        block_size: int,
        block_stride: int,
    ) -> None:
        self.flat_keys, self.flat_values = keys, values
        self.shape, self.block_size, self.block_stride = shape, block_size, block_stride
        self.dtype = keys[0].dtype
        self.keys = [self._by_token(layer) for layer in keys]
        """(blocks, block size, kv_heads, head_dim) of each layer."""
        self.values = [self._by_token(layer) for layer in values]

    def _by_token(self, flat: torch.Tensor) -> torch.Tensor:
        used = flat.view(-1, self.block_stride)[:, : self.block_size * self.shape.width]
        return used.unflatten(1, (self.block_size, self.shape.kv_heads, self.shape.head_dim))

    def write(
        self, layer: int, slots: tuple[torch.Tensor, torch.Tensor], key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Store the keys and values, shape (tokens, kv_heads, head_dim), of tokens.

        Args:
            layer: index of the layer.
            slots: (tokens,) block of each token, and (tokens,) its place there.
            key: the keys, of any type.
            value: the values, of any type.
        """
        for kept, new in ((self.keys, key), (self.values, value)):
            # Numbers in float16 overflow to infinity. Masked attention multiplies a rejected draft's values by 0, and
            # those in a block that another request gave back: 0 · ∞ is NaN, which would spoil the tokens seen.
            finite = new.nan_to_num() if new.dtype == torch.float16 else new
            kept[layer][slots] = finite.to(self.dtype)


class KVMemory:
    """Memory of the target's KV cache, parts of whose blocks can hold a drafter's.

    Layers are outermost, so that one layer's blocks are contiguous. A block of the target is a place in every layer. A
    drafter with one d-th of the layers finds d parts in it: its layer j uses the target's layers j · d to
    (j + 1) · d − 1, one for each part.

    Args:
        shape: of the target.
        num_blocks: blocks of the target.
        block_size: tokens of the target in a block.
    """

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape, self.block_size = shape, block_size
        size = (shape.layers, num_blocks * block_size * shape.width)
        # Zeros, because masked attention multiplies slots that were never written by 0, and 0 · NaN is NaN. What
        # `KVStore.write` stores is finite too.
        self._keys = torch.zeros(size, dtype=dtype, device=device)
        self._values = torch.zeros(size, dtype=dtype, device=device)

    def store(self, shape: KVShape) -> KVStore:
        """The cache of the target or of a drafter whose blocks are parts; see `drafter_parts`."""
        parts, block_size = drafter_parts(self.shape, shape, self.block_size) or (0, 0)
        keys, values = (memory.view(-1, parts * memory.shape[1]) for memory in (self._keys, self._values))
        return KVStore(keys.unbind(), values.unbind(), shape, block_size, self.block_size * self.shape.width)


def drafter_parts(target: KVShape, drafter: KVShape, block_size: int) -> tuple[int, int] | None:
    """How many of a drafter's KV blocks fit in a block of the target, and the tokens in each of them.

    None where they are no parts: the target's layers are no multiple of the drafter's, or a part would hold no token.
    """
    parts, rest = divmod(target.layers, drafter.layers)
    tokens = block_size * target.width // drafter.width
    return None if rest or not tokens else (parts, tokens)
