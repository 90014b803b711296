"""Catching up a drafter's KV lag in passes of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turbospec.interface import IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.request import Request
from turbospec_engine.runner import block_table


def catch_up(
    requests: Sequence[Request],
    missing: IntArray,
    most: int,
    compute: Callable[[Sequence[Request], RaggedBatch, IntArray], object],
) -> None:
    """Compute what the drafter's KV cache lacks, until one pass may compute the rest.

    After many steps without drafts it may lack the whole contexts of all requests: one pass over all of their tokens
    could take more memory than there is.

    Args:
        requests: those that draft.
        missing: (n,) tokens that the cache lacks of each. The last one is left to the draft's own pass.
        most: tokens in a pass.
        compute: runs a pass over the next tokens that the cache lacks of some requests, as rows of a batch; the array
            has the ids of their blocks in the target's KV cache.
    """
    lag = np.maximum(missing - 1, 0)
    while lag.any() and missing.sum() > most:
        taken = np.clip(most - (lag.cumsum() - lag), 0, lag)
        rows = np.flatnonzero(taken)
        some = [requests[row] for row in rows.tolist()]
        compute(some, *lacking_tokens(some, taken[rows]))
        for request, tokens in zip(some, taken[rows].tolist(), strict=True):
            request.draft_computed += tokens
        lag, missing = lag - taken, missing - taken


def missing_tokens(requests: Sequence[Request], skipped: int) -> IntArray:
    """(n,) tokens that the drafter's KV cache lacks of each request, where it holds all but the last `skipped`."""
    return np.array([request.num_tokens - skipped - request.draft_computed for request in requests], np.int64)


def lacking_tokens(requests: Sequence[Request], counts: IntArray) -> tuple[RaggedBatch, IntArray]:
    """The next positions that the drafter's KV cache lacks, and (rows, blocks) ids of the rows' blocks in the target's.

    Args:
        requests: the rows.
        counts: (rows,) positions of each.
    """
    computed = np.array([request.draft_computed for request in requests])
    batch = RaggedBatch(counts, computed + counts, block_table([request.draft_block_ids for request in requests]))
    return batch, block_table([request.block_ids for request in requests])


def tokens_to_read(requests: Sequence[Request], counts: IntArray, skipped: int) -> IntArray:
    """The tokens that a drafter reads there, end to end, where it reads token i + `skipped` at position i."""
    starts = [request.draft_computed + skipped for request in requests]
    rows = zip(requests, starts, counts.tolist(), strict=True)
    return np.concatenate([request.tokens[start : start + count] for request, start, count in rows])
