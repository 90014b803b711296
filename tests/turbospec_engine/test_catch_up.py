"""Catching up takes passes of bounded size, and leaves the last of each request's tokens to the draft's own pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turbospec.interface import IntArray
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.drafter.catch_up import catch_up


@pytest.mark.parametrize("most", [1, 3, 4, 10, 16, 17, 100])
@pytest.mark.parametrize("missing", [[5, 1, 9, 2], [30], [1, 1, 1, 1]])
def test_all_but_one_pass_is_computed_in_order(missing: list[int], most: int) -> None:
    before = [7 * row for row in range(len(missing))]
    requests: list[Any] = [
        SimpleNamespace(row=row, draft_computed=computed, draft_block_ids=array("q", [row]), block_ids=array("q", [0]))
        for row, computed in enumerate(before)
    ]
    passes, computed = list[int](), list(before)

    def compute(rows: Sequence[Any], batch: RaggedBatch, target_tables: IntArray) -> None:
        assert len(target_tables) == len(rows)
        passes.append(int(batch.query_lens.sum()))
        for index, request in enumerate(rows):
            count = int(batch.query_lens[index])
            assert batch.context_lens[index] - count == computed[request.row]
            assert batch.block_tables[index].tolist() == [request.row]
            computed[request.row] += count

    catch_up(requests, np.array(missing), most, compute)
    left = np.array(missing) - computed + before
    assert [request.draft_computed for request in requests] == computed
    assert left.min() > 0
    assert left.sum() <= most or left.max() == 1
    assert max(passes, default=0) <= most
    # No more passes than are needed.
    assert len(passes) == max(-(-min(sum(missing) - most, sum(missing) - len(missing)) // most), 0)
