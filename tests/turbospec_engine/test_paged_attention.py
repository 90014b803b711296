"""The CPU kernel agrees with gather and padded attention, and both with plain attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from turbospec_engine import attention
from turbospec_engine.attention import (
    GatheredRows,
    KernelRows,
    LongRow,
    PagedAttention,
    RaggedBatch,
    kernels_for_any_shape,
)
from turbospec_engine.kv_store import KVShape, KVStore

TOLERANCE = 1e-5


def ragged(
    rng: np.random.Generator, query_lens: list[int], block_size: int, causal: bool = True
) -> tuple[RaggedBatch, int]:
    lens = np.array(query_lens)
    contexts = lens + rng.integers(0, 70, len(lens))
    widest = int(-(-contexts.max() // block_size))
    num_blocks = widest * len(lens)
    tables = rng.permutation(num_blocks).reshape(len(lens), widest)
    return RaggedBatch(lens, contexts, tables, causal), num_blocks


def random_store(num_blocks: int, block_size: int, shape: KVShape, *, scale: float = 1, unused: int = 0) -> KVStore:
    """Random keys and values; `unused` numbers end every block."""
    stride = block_size * shape.width + unused
    keys, values = (scale * torch.randn(2, num_blocks * stride)).unbind(0)
    return KVStore([keys], [values], shape, block_size, stride)


@pytest.mark.parametrize("block_size", [16, 5])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 64), (8, 2, 32), (6, 3, 24)])
@pytest.mark.parametrize("query_lens", [[1], [1, 4, 1, 7, 2, 16]])
@pytest.mark.parametrize("unused", [0, 7])
@pytest.mark.parametrize("causal", [True, False])
def test_kernel_agrees_with_gather(
    causal: bool, unused: int, query_lens: list[int], heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    batch, num_blocks = ragged(np.random.default_rng(0), query_lens, block_size, causal)
    torch.manual_seed(0)
    tokens = sum(query_lens)
    query = torch.randn(tokens, heads, head_dim)
    store = random_store(num_blocks, block_size, KVShape(1, kv_heads, head_dim), unused=unused)
    rows = np.arange(len(query_lens))
    gathered, kernel = torch.empty_like(query), torch.empty_like(query)
    GatheredRows(batch, rows, block_size, torch.device("cpu")).attend(query, store, 0, 0.2, gathered)
    KernelRows(batch, rows, store).attend(query, store, 0, 0.2, kernel)
    torch.testing.assert_close(kernel, gathered, atol=TOLERANCE, rtol=0)
    for row in rows.tolist():
        alone = torch.empty_like(query)
        LongRow(batch, row, block_size, torch.device("cpu")).attend(query, store, 0, 0.2, alone)
        span = slice(int(batch.query_starts[row]), int(batch.query_starts[row] + batch.query_lens[row]))
        torch.testing.assert_close(alone[span], gathered[span], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("query_lens", [[1, 4], [40]])
def test_keys_are_not_copied_to_query_heads_that_share_them(
    query_lens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU kernel takes a mask and fewer KV heads than query heads."""
    batch, num_blocks = ragged(np.random.default_rng(0), query_lens, 16)
    store, query = random_store(num_blocks, 16, KVShape(1, 2, 16)), torch.randn(sum(query_lens), 8, 16)
    heads: list[tuple[int, int]] = []

    def spy(query: torch.Tensor, key: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        assert not options.get("enable_gqa")
        heads.append((query.shape[1], key.shape[1]))
        return torch.nn.functional.scaled_dot_product_attention(query, key, *others, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", spy)
    device = torch.device("cpu")
    rows = LongRow(batch, 0, 16, device)
    if len(query_lens) > 1:
        rows = GatheredRows(batch, np.arange(len(query_lens)), 16, device)
    rows.attend(query, store, 0, 0.2, torch.empty_like(query))
    assert heads == [(2, 2)]


def test_kernels_that_build_a_plan_for_every_shape_are_not_used_on_a_gpu() -> None:
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    before = enabled()
    with kernels_for_any_shape(torch.device("cuda")):
        assert not enabled()
    assert enabled() == before
    with kernels_for_any_shape(torch.device("cpu")):
        assert enabled() == before


def test_large_scores_do_not_overflow() -> None:
    batch, num_blocks = ragged(np.random.default_rng(1), [3, 1], 16)
    query = torch.full((4, 2, 16), 30.0)
    store = random_store(num_blocks, 16, KVShape(1, 2, 16), scale=30)
    gathered, kernel = torch.empty_like(query), torch.empty_like(query)
    GatheredRows(batch, np.arange(2), 16, torch.device("cpu")).attend(query, store, 0, 1.0, gathered)
    KernelRows(batch, np.arange(2), store).attend(query, store, 0, 1.0, kernel)
    torch.testing.assert_close(kernel, gathered, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("length", [3, 40])
@pytest.mark.parametrize("spoilt", [torch.inf, -torch.inf, torch.nan])
def test_an_overflow_in_float16_spoils_no_other_token(spoilt: float, length: int) -> None:
    """Neither those before it in its row, which may be accepted, nor a request that gets its block later."""
    torch.manual_seed(0)
    store = random_store(3, 16, KVShape(1, 2, 16))
    query, key, value = torch.randn(3, length, 2, 16).half().unbind(0)
    key[-1], value[-1] = spoilt, spoilt
    cpu, tables = torch.device("cpu"), np.array([[0, 1, 2]])
    written = RaggedBatch(np.array([length]), np.array([length]), tables)
    out = PagedAttention(written, store, cpu).forward(0, query, key, value, 0.25)
    assert torch.isfinite(out[:-1]).all()
    later = RaggedBatch(np.array([length - 1]), np.array([length - 1]), tables)
    for rows in (GatheredRows(later, np.array([0]), 16, cpu), KernelRows(later, np.array([0]), store)):
        attended = torch.empty(length - 1, 2, 16)
        rows.attend(query[:-1].float(), store, 0, 0.25, attended)
        assert torch.isfinite(attended).all()


@pytest.mark.parametrize("causal", [True, False])
def test_long_and_short_rows_in_one_pass(causal: bool) -> None:
    """A prefill chunk rides with decodes: every token attends to its own request only."""
    batch, num_blocks = ragged(np.random.default_rng(2), [1, 50, 3], 16, causal)
    torch.manual_seed(0)
    store = random_store(num_blocks, 16, KVShape(1, 2, 16))
    query, key, value = torch.randn(54, 4, 16), torch.randn(54, 2, 16), torch.randn(54, 2, 16)
    out = PagedAttention(batch, store, torch.device("cpu")).forward(0, query, key, value, 0.25)
    for row in range(3):
        start, length, context = (int(x[row]) for x in (batch.query_starts, batch.query_lens, batch.context_lens))
        positions = np.arange(context)
        slots = torch.from_numpy(batch.block_tables[row, positions // 16] * 16 + positions % 16)
        past = context - length
        assert torch.equal(store.keys[0].flatten(0, 1)[slots[past:]], key[start : start + length])
        scores = torch.einsum(
            "qhd,khd->hqk", query[start : start + length], store.keys[0].flatten(0, 1)[slots].repeat_interleave(2, 1)
        )
        hidden = torch.ones(length, context).tril(past if causal else context) == 0
        weights = (scores * 0.25).masked_fill(hidden, -torch.inf).softmax(-1)
        expected = torch.einsum("hqk,khd->qhd", weights, store.values[0].flatten(0, 1)[slots].repeat_interleave(2, 1))
        torch.testing.assert_close(out[start : start + length], expected, atol=TOLERANCE, rtol=0)


class CopiedNumbers(TorchDispatchMode):
    """Counts the numbers that are copied to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.total += result.numel()
        return result


def test_what_is_copied_to_a_device_grows_with_the_blocks() -> None:
    """Not with the tokens: of 256 requests with 4,096 tokens each they would be megabytes in every pass."""
    rows, context = 8, 4096
    store = random_store(1, 16, KVShape(1, 2, 16))
    blocks = np.zeros((rows, context // 16), np.int64)
    lens = np.full(rows, 4)
    lens[0] = 40  # a long row beside short ones
    with CopiedNumbers() as copied:
        PagedAttention(RaggedBatch(lens, np.full(rows, context), blocks), store, torch.device("meta"))
    assert 0 < copied.total < 2 * blocks.size
