"""Paged attention on the CPU: reads the blocks of the KV cache where they lie, without gathering them first."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch
from numba import njit, prange
from numba.core import config as numba_config

from turbospec.interface import FloatArray, IntArray

# Shares torch's OpenMP threads: a second pool would compete with them for the cores. Starting numba's threading layer
# resets OpenMP's thread count for torch too, so it is started here, once, and the count is restored.
numba_config.THREADING_LAYER = "omp"  # pyright: ignore[reportAttributeAccessIssue]
MAX_THREADS: int = numba_config.NUMBA_NUM_THREADS  # pyright: ignore[reportAttributeAccessIssue]
_torch_threads = torch.get_num_threads()
numba.set_num_threads(min(_torch_threads, MAX_THREADS))
torch.set_num_threads(_torch_threads)

_UNROLL = 8
"""Keys weighed together, so that a query's output is loaded and stored once for all of them."""


class PagedRows(NamedTuple):
    """The rows of a pass that the kernel attends, and where their keys and values are."""

    block_tables: IntArray
    """(rows, blocks) ids of each row's blocks."""
    query_starts: IntArray
    """(rows,) index of each row's first query in the pass."""
    query_lens: IntArray
    """(rows,) queries of each row."""
    context_lens: IntArray
    """(rows,) keys of each row."""
    block_size: int
    """Tokens in a block."""
    block_stride: int
    """Numbers of `keys` from one block to the next."""
    kv_heads: int
    causal: bool
    """Whether a query attends to its row's keys up to its own; otherwise to all of them."""


@njit(fastmath=True, inline="always")
def _exp(x):
    """exp for x <= 0 to float32 accuracy; unlike math.exp it vectorises without Intel's SVML."""
    scaled = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    whole = np.floor(scaled + np.float32(0.5))
    rest = scaled - whole
    power = np.float32(1.535336188319500e-4)
    power = power * rest + np.float32(1.339887440266574e-3)
    power = power * rest + np.float32(9.618437357674640e-3)
    power = power * rest + np.float32(5.550332471162809e-2)
    power = power * rest + np.float32(2.402264791363012e-1)
    power = power * rest + np.float32(6.931472028550421e-1)
    power = power * rest + np.float32(1.0)
    return power * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(parallel=True, fastmath=True, cache=True)
def _paged_attention(query, keys, values, rows, scale, head_parts, out):
    block_tables, query_starts, query_lens, context_lens, block_size, block_stride, kv_heads, causal = rows
    group = query.shape[1] // kv_heads
    head_dim = query.shape[2]
    shape = (block_size, kv_heads, head_dim)
    numbers = block_size * kv_heads * head_dim
    for task in prange(len(query_lens) * head_parts):
        row, part = task // head_parts, task % head_parts
        first_head, last_head = part * kv_heads // head_parts, (part + 1) * kv_heads // head_parts
        start, length, context = query_starts[row], query_lens[row], context_lens[row]
        num_blocks = (context + block_size - 1) // block_size
        weights = np.empty((last_head - first_head, group * length, num_blocks * block_size), np.float32)

        # Blocks outermost: each key is read from memory once for all heads and queries.
        for block in range(num_blocks):
            base = block_tables[row, block] * block_stride
            block_keys = keys[base : base + numbers].reshape(shape)
            count = min(block_size, context - block * block_size)
            for head in range(first_head, last_head):
                for index in range(group * length):
                    one = query[start + index // group, head * group + index % group]
                    scores = weights[head - first_head, index]
                    for offset in range(count):
                        score = np.float32(0)
                        for d in range(head_dim):
                            score += one[d] * block_keys[offset, head, d]
                        scores[block * block_size + offset] = score * scale

        for head in range(first_head, last_head):
            for index in range(group * length):
                scores = weights[head - first_head, index]
                visible = context - length + index // group + 1 if causal else context
                largest = scores[0]
                for position in range(visible):
                    largest = max(largest, scores[position])
                total = np.float32(0)
                for position in range(visible):
                    weight = _exp(scores[position] - largest)
                    scores[position] = weight
                    total += weight
                for position in range(visible):
                    scores[position] /= total
                scores[visible:] = 0
                out[start + index // group, head * group + index % group] = 0

        for block in range(num_blocks):
            base = block_tables[row, block] * block_stride
            block_values = values[base : base + numbers].reshape(shape)
            for head in range(first_head, last_head):
                for index in range(group * length):
                    weight = weights[head - first_head, index, block * block_size : (block + 1) * block_size]
                    one = out[start + index // group, head * group + index % group]
                    offset = 0
                    while offset + _UNROLL <= block_size:
                        for d in range(head_dim):
                            one[d] += (
                                weight[offset] * block_values[offset, head, d]
                                + weight[offset + 1] * block_values[offset + 1, head, d]
                                + weight[offset + 2] * block_values[offset + 2, head, d]
                                + weight[offset + 3] * block_values[offset + 3, head, d]
                                + weight[offset + 4] * block_values[offset + 4, head, d]
                                + weight[offset + 5] * block_values[offset + 5, head, d]
                                + weight[offset + 6] * block_values[offset + 6, head, d]
                                + weight[offset + 7] * block_values[offset + 7, head, d]
                            )
                        offset += _UNROLL
                    while offset < block_size:
                        for d in range(head_dim):
                            one[d] += weight[offset] * block_values[offset, head, d]
                        offset += 1


def paged_attention(
    query: FloatArray, keys: FloatArray, values: FloatArray, rows: PagedRows, scale: float, out: FloatArray
) -> None:
    """Attention of ragged rows over blocks, float32.

    Args:
        query: (tokens, heads, head_dim); a row's queries are its context's last tokens.
        keys: (blocks · block stride,) already holding this pass's own; in a block (block size, kv_heads, head_dim).
        values: as `keys`.
        rows: the rows to attend.
        scale: factor on the scores.
        out: as `query`; only the rows' queries are written.
    """
    numba.set_num_threads(min(torch.get_num_threads(), MAX_THREADS))
    # Few rows: a task for each head, to occupy all threads. Many rows: a task for all heads of a row, which together
    # read memory sequentially.
    head_parts = rows.kv_heads if len(rows.query_lens) < 2 * numba.get_num_threads() else 1
    _paged_attention(query, keys, values, rows, np.float32(scale), head_parts, out)
