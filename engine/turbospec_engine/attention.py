"""Attention over the block KV cache, in the shape that transformers' attention interface asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from turbospec.types import IntArray
from turbospec_engine.kv_store import KVStore

ATTENTION = "turbospec_paged"
"""Name under which the function is registered with transformers."""

SHORT_QUERY = 32
"""Rows with at most this many query tokens (decodes, verifications) are attended together; longer ones (prefill
chunks) one by one, because padding the short rows to their length would cost more than it saves."""


@dataclass(slots=True, frozen=True)
class RaggedBatch:
    """Where the tokens of one pass come from; all on the host. Rows are requests, their tokens lie end to end."""

    query_lens: IntArray
    """(rows,) tokens of each row in this pass."""
    context_lens: IntArray
    """(rows,) tokens of each row in the cache once this pass has written its own."""
    block_tables: IntArray
    """(rows, blocks) ids of each row's blocks, padded with 0."""

    @property
    def positions(self) -> IntArray:
        """(tokens,) position of each token in its request."""
        starts = self.context_lens - self.query_lens
        return np.arange(self.query_lens.sum()) + np.repeat(starts - self.query_starts, self.query_lens)

    @property
    def query_starts(self) -> IntArray:
        """(rows,) index of each row's first token in the pass."""
        return np.cumsum(self.query_lens) - self.query_lens

    def slots(self, block_size: int) -> IntArray:
        """(tokens,) slot of each token in the KV store."""
        positions = self.positions
        rows = np.repeat(np.arange(len(self.query_lens)), self.query_lens)
        return self.block_tables[rows, positions // block_size] * block_size + positions % block_size


@dataclass(slots=True, frozen=True)
class ShortRows:
    """Rows attended together by gather and a padded attention."""

    tokens: torch.Tensor
    """(rows, longest) index of each query token in the pass, padded with the row's last one."""
    slots: torch.Tensor
    """(rows, context) KV slots."""
    mask: torch.Tensor
    """(rows, 1, longest, context) True where a query sees a key."""


@dataclass(slots=True, frozen=True)
class LongRow:
    """One row attended by itself."""

    start: int
    stop: int
    slots: torch.Tensor
    """(context,) KV slots."""
    mask: torch.Tensor | None
    """(1, 1, tokens, context) True where a query sees a key; None where plain causal attention is meant."""


class PagedAttention:
    """What the layers of one pass need to know: where to write keys and values, and what each token attends to."""

    def __init__(self, batch: RaggedBatch, store: KVStore, device: torch.device) -> None:
        self.store = store
        self.device = device
        self.slots = torch.from_numpy(batch.slots(store.block_size)).to(device)
        short = batch.query_lens <= SHORT_QUERY
        self.short = self._plan_short(batch, np.flatnonzero(short)) if short.any() else None
        self.long = [self._plan_long(batch, row) for row in np.flatnonzero(~short)]

    def forward(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """Write this pass's keys and values and attend.

        Args:
            layer: index of the attention layer.
            query: (tokens, heads, head_dim).
            key: (tokens, kv_heads, head_dim).
            value: as `key`.
            scale: factor on the scores.

        Returns:
            (tokens, heads, head_dim).
        """
        self.store.write(layer, self.slots, key, value)
        keys, values = self.store.keys[layer], self.store.values[layer]
        grouped = query.shape[1] != key.shape[1]
        out = torch.empty_like(query)
        if (short := self.short) is not None:
            attended = scaled_dot_product_attention(
                query[short.tokens].transpose(1, 2),
                keys[short.slots].transpose(1, 2),
                values[short.slots].transpose(1, 2),
                attn_mask=short.mask,
                scale=scale,
                enable_gqa=grouped,
            )
            # A padded query repeats its row's last token, so writing it twice writes the same value.
            out[short.tokens] = attended.transpose(1, 2)
        for row in self.long:
            attended = scaled_dot_product_attention(
                query[None, row.start : row.stop].transpose(1, 2),
                keys[row.slots][None].transpose(1, 2),
                values[row.slots][None].transpose(1, 2),
                attn_mask=row.mask,
                is_causal=row.mask is None,
                scale=scale,
                enable_gqa=grouped,
            )
            out[row.start : row.stop] = attended[0].transpose(0, 1)
        return out

    def _plan_short(self, batch: RaggedBatch, rows: IntArray) -> ShortRows:
        query_lens, context_lens = batch.query_lens[rows], batch.context_lens[rows]
        columns = np.minimum(np.arange(query_lens.max()), query_lens[:, None] - 1)
        tokens = batch.query_starts[rows][:, None] + columns
        last_seen = (context_lens - query_lens)[:, None] + columns
        mask = np.arange(context_lens.max()) <= last_seen[:, None, :, None]
        return ShortRows(self._to(tokens), self._to(self._context_slots(batch, rows)), self._to(mask))

    def _plan_long(self, batch: RaggedBatch, row: int) -> LongRow:
        start, length, context = int(batch.query_starts[row]), int(batch.query_lens[row]), int(batch.context_lens[row])
        slots = self._to(self._context_slots(batch, np.array([row]))[0])
        mask = None
        if context > length:
            mask = self._to((np.arange(context) <= np.arange(context - length, context)[:, None])[None, None])
        return LongRow(start, start + length, slots, mask)

    def _context_slots(self, batch: RaggedBatch, rows: IntArray) -> IntArray:
        positions = np.arange(batch.context_lens[rows].max())
        size = self.store.block_size
        return batch.block_tables[rows][:, positions // size] * size + positions % size

    def _to(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged: PagedAttention,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers' layers call; tensors have shape (1, heads, tokens, head_dim).

    `paged` reaches it through the model's keyword arguments. No mask function is registered beside it, which tells
    transformers not to build a mask: `paged` knows who sees whom.
    """
    out = paged.forward(
        int(module.layer_idx),  # pyright: ignore[reportArgumentType]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling,
    )
    return out[None], None


AttentionInterface.register(ATTENTION, paged_attention_forward)
