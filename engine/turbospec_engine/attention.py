"""Attention over the paged KV cache, as a function of transformers' attention interface."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from turbospec import UserError
from turbospec.interface import IntArray
from turbospec_engine.kv_store import KVStore
from turbospec_engine.paged_attention import PagedRows, paged_attention
from turbospec_engine.transfer import on_device

ATTENTION = "turbospec_paged"
"""Name under which the function is registered with transformers."""

SHORT_QUERY = 32
"""Rows with at most this many query tokens (decode, verify) are attended together; longer ones (prefill chunks) one by
one, because padding the short rows to their length would cost more than it saves."""

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Options of transformers' attention interface that change the scores and are not implemented here."""
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""PyTorch's attention kernels, without cuDNN's."""


def kernels_for_any_shape(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which PyTorch does not use cuDNN's attention, which it prefers on recent GPUs.

    cuDNN builds a plan for every new shape, which takes longer than many steps. The shapes of a pass change with the
    requests, their drafts and their contexts.
    """
    return sdpa_kernel(KERNELS) if device.type == "cuda" else nullcontext()


@dataclass(slots=True, frozen=True)
class RaggedBatch:
    """The tokens of one pass: rows are requests, and their tokens lie end to end. All arrays are on the host."""

    query_lens: IntArray
    """(rows,) tokens of each row in this pass."""
    context_lens: IntArray
    """(rows,) tokens of each row in the cache once this pass has written its own."""
    block_tables: IntArray
    """(rows, blocks) ids of each row's blocks, padded with 0."""
    causal: bool = True
    """Whether a token attends to its row's tokens up to itself; otherwise to all of them."""

    @property
    def positions(self) -> IntArray:
        """(tokens,) position of each token in its request."""
        starts = self.context_lens - self.query_lens
        return np.arange(self.query_lens.sum()) + np.repeat(starts - self.query_starts, self.query_lens)

    @property
    def query_starts(self) -> IntArray:
        """(rows,) index of each row's first token in the pass."""
        return np.cumsum(self.query_lens) - self.query_lens

    def slots(self, block_size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens,) block of each token in the KV store, and (tokens,) its place in the block, on `device`."""
        positions = self.positions
        rows = np.repeat(np.arange(len(self.query_lens)), self.query_lens)
        blocks = self.block_tables[rows, positions // block_size]
        return on_device(blocks, device), on_device(positions % block_size, device)

    def context_blocks(self, rows: IntArray, block_size: int) -> IntArray:
        """(rows, blocks) blocks of some rows' contexts, as many as the longest has; past a row's own, any blocks."""
        return self.block_tables[rows][:, : -(-self.context_lens[rows].max() // block_size)]


class Rows(Protocol):
    """Some rows of a pass, and how their attention is computed."""

    def attend(self, query: torch.Tensor, store: KVStore, layer: int, scale: float, out: torch.Tensor) -> None:
        """Compute the attention of these rows' queries and write their part of `out`.

        Args:
            query: (tokens, heads, head_dim) of the whole pass.
            store: keys and values.
            layer: index of the layer.
            scale: factor on the scores.
            out: as `query`.
        """
        ...


class GatheredRows:
    """Short rows, attended together: their blocks gathered, queries padded. For any device.

    What is copied to the device grows with the number of blocks, not of tokens; the mask is made there.
    """

    def __init__(self, batch: RaggedBatch, rows: IntArray, block_size: int, device: torch.device) -> None:
        query_lens, context_lens = batch.query_lens[rows], batch.context_lens[rows]
        # Padding repeats a row's last query: its result is written several times, always with the same value.
        columns = np.minimum(np.arange(query_lens.max()), query_lens[:, None] - 1)
        last_seen = (context_lens - query_lens)[:, None] + columns if batch.causal else context_lens[:, None] - 1
        self.tokens = on_device(batch.query_starts[rows][:, None] + columns, device)
        self.blocks = on_device(batch.context_blocks(rows, block_size), device)
        self.mask = _Mask(_visible(self.blocks.shape[1] * block_size, on_device(last_seen, device))[:, None])

    def attend(self, query: torch.Tensor, store: KVStore, layer: int, scale: float, out: torch.Tensor) -> None:
        attended = self.mask.attend(
            query[self.tokens].transpose(1, 2),
            store.keys[layer][self.blocks].flatten(1, 2).transpose(1, 2),
            store.values[layer][self.blocks].flatten(1, 2).transpose(1, 2),
            scale,
        )
        out[self.tokens] = attended.transpose(1, 2)


class KernelRows:
    """Short rows, attended by the CPU kernel without gathering keys; float32 only."""

    def __init__(self, batch: RaggedBatch, rows: IntArray, store: KVStore) -> None:
        self.rows = PagedRows(
            batch.block_tables[rows],
            batch.query_starts[rows],
            batch.query_lens[rows],
            batch.context_lens[rows],
            store.block_size,
            store.block_stride,
            store.shape.kv_heads,
            batch.causal,
        )

    def attend(self, query: torch.Tensor, store: KVStore, layer: int, scale: float, out: torch.Tensor) -> None:
        keys, values = store.flat_keys[layer].numpy(), store.flat_values[layer].numpy()
        paged_attention(query.contiguous().numpy(), keys, values, self.rows, scale, out.numpy())


class LongRow:
    """One long row, attended alone."""

    def __init__(self, batch: RaggedBatch, row: int, block_size: int, device: torch.device) -> None:
        length, context = int(batch.query_lens[row]), int(batch.context_lens[row])
        start = int(batch.query_starts[row])
        self.span = slice(start, start + length)
        self.context = context
        self.blocks = on_device(batch.context_blocks(np.array([row]), block_size)[0], device)
        self.mask = None
        self.is_causal = batch.causal and context == length
        if batch.causal and context > length:
            self.mask = _Mask(_visible(context, torch.arange(context - length, context, device=device)))

    def attend(self, query: torch.Tensor, store: KVStore, layer: int, scale: float, out: torch.Tensor) -> None:
        queries = query[None, self.span].transpose(1, 2)
        keys = store.keys[layer][self.blocks].flatten(0, 1)[None, : self.context].transpose(1, 2)
        values = store.values[layer][self.blocks].flatten(0, 1)[None, : self.context].transpose(1, 2)
        if self.mask is not None:
            attended = self.mask.attend(queries, keys, values, scale)
        else:
            attended = scaled_dot_product_attention(
                queries,
                keys,
                values,
                is_causal=self.is_causal,
                scale=scale,
                enable_gqa=query.shape[1] != store.shape.kv_heads,
            )
        out[self.span] = attended[0].transpose(0, 1)


class PagedAttention:
    """What the layers of one pass need: where to write keys and values, and what each token attends to."""

    def __init__(self, batch: RaggedBatch, store: KVStore, device: torch.device) -> None:
        self.store = store
        self.layers: set[int] = set()
        """Those that have called `forward`."""
        self.slots = batch.slots(store.block_size, device)
        long = np.flatnonzero(batch.query_lens > SHORT_QUERY).tolist()
        self.parts: list[Rows] = []
        self.parts += [LongRow(batch, row, store.block_size, device) for row in long]
        short = np.flatnonzero(batch.query_lens <= SHORT_QUERY)
        if len(short) and device.type == "cpu":
            self.parts.append(KernelRows(batch, short, store))
        elif len(short):
            self.parts.append(GatheredRows(batch, short, store.block_size, device))

    def forward(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write this pass's keys and values to the cache, then compute the attention.

        Args:
            layer: index of the attention layer.
            query: (tokens, heads, head_dim).
            key: (tokens, kv_heads, head_dim).
            value: as `key`.
            scale: factor on the scores.

        Returns:
            (tokens, heads, head_dim), contiguous.

        Raises:
            UserError: the layer has called it before: what it wrote would be overwritten.
        """
        if layer in self.layers:
            raise UserError(
                f"layer {layer} of the model calls attention more than once in a pass, which this engine does not "
                "support; use another model"
            )
        self.layers.add(layer)
        self.store.write(layer, self.slots, key, value)
        queries = query.to(self.store.dtype)
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for rows in self.parts:
            rows.attend(queries, self.store, layer, scale, out)
        return out.to(query.dtype)


class _Mask:
    """A mask, and attention under it, in which several query heads may share a KV head.

    PyTorch's kernels for masks want as many KV heads as query heads; with `enable_gqa` keys and values are copied to
    every query head. Query heads that share a KV head are therefore taken as further queries of one head.

    Args:
        visible: whether a query sees a position; broadcast to (rows, 1, tokens, context).
    """

    def __init__(self, visible: torch.Tensor) -> None:
        self._visible = visible
        self._repeated: torch.Tensor | None = None
        """The mask of all queries of a KV head, the same in all layers; None before the first."""

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        """Compute the attention.

        Args:
            queries: (rows, heads, tokens, head_dim).
            keys, values: (rows, kv_heads, context, head_dim).
            scale: factor on the scores.

        Returns:
            As `queries`.
        """
        rows, heads, tokens, width = queries.shape
        shared = heads // keys.shape[1]
        if self._repeated is None:
            visible = self._visible.expand(*self._visible.shape[:-2], tokens, -1)
            self._repeated = torch.cat([visible] * shared, dim=-2) if shared > 1 else visible
        together = queries.reshape(rows, keys.shape[1], shared * tokens, width)
        attended = scaled_dot_product_attention(together, keys, values, attn_mask=self._repeated, scale=scale)
        return attended.reshape(rows, heads, tokens, width)


def _visible(context: int, last_seen: torch.Tensor) -> torch.Tensor:
    """(…, context) whether a query attends to each position; `last_seen`, (…,), are the last ones."""
    return torch.arange(context, device=last_seen.device) <= last_seen[..., None]


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged: PagedAttention,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers' layers call; tensors have shape (1, heads, tokens, head_dim).

    `paged` arrives through the model's keyword arguments. No mask function is registered, so that transformers builds
    no mask: `paged` has the masks.

    Raises:
        UserError: the model uses an option that `paged` does not compute.
    """
    for name in UNSUPPORTED:
        if options.get(name) is not None:
            raise UserError(f"the model's attention uses {name}, which this engine does not support; use another model")
    if attention_mask is not None:
        raise UserError(
            "the model's attention uses a mask of its own, which this engine does not support; use another model"
        )
    if not getattr(module, "is_causal", True):
        raise UserError(
            "the model's attention is not causal, which this engine does not support; use a model that generates text"
        )
    out = paged.forward(
        int(module.layer_idx),  # pyright: ignore[reportArgumentType]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling,
    )
    return out[None], None


AttentionInterface.register(ATTENTION, paged_attention_forward)
