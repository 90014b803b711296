"""The compiled functions of the scheduler against the same rules in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospec.hosts.vllm.scheduler.kernels import (
    COMPUTED,
    EVERY,
    batch_columns,
    can_catch_up,
    compile_kernels,
    longest_drafts,
    reported_columns,
    verified_columns,
    view_columns,
)
from turbospec.interface import IntArray, Phase

LONGEST, MAX_MODEL_LEN = 6, 40
Seeds = st.lists(st.integers(0, 2**32 - 1), min_size=0, max_size=6)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    compile_kernels()


def columns_of(seeds: list[int], high: int, count: int) -> list[IntArray]:
    """(n,) arrays of integers from 0 up to `high`, one for each of `count`."""
    drawn = [np.random.default_rng(seed).integers(0, high + 1, count) for seed in seeds]
    return [np.array(column, np.int64) for column in np.array(drawn, np.int64).reshape(-1, count).T.copy()]


@given(seeds=Seeds, asynchronous=st.booleans(), running=st.integers(0, 1), drafts_fit=st.booleans())
def test_a_view(seeds: list[int], asynchronous: bool, running: int, drafts_fit: bool) -> None:
    n = len(seeds)
    before, output, placeholders, scheduled, prompt, most, own, lag, since, unresolved = columns_of(seeds, 12, 10)
    rows, numbers, classes, tokens = np.arange(n)[::-1].copy(), np.arange(n) + 7, np.arange(n) % 3, prompt + output
    read = np.stack([before, tokens[rows], placeholders], axis=1).ravel() if n else np.zeros(0, np.int64)

    columns, computed, context, longest, prefill, missing, drafts, sampling = batch_columns(
        read, scheduled, rows, prompt, most
    )
    view, paddable = view_columns(
        columns, rows, numbers, classes, own, lag, since, unresolved, (4, 8, asynchronous), LONGEST, MAX_MODEL_LEN,
        running, drafts_fit,
    )  # fmt: skip

    after, known = before + scheduled, tokens[rows] + placeholders
    left_to_prefill = np.maximum(known - after, 0)
    assert (computed, context, longest) == (scheduled.sum(), after.sum(), after.max(initial=0))
    assert prefill == scheduled[before < np.maximum(known - 1, prompt[rows])].sum()
    assert (missing, drafts) == (left_to_prefill.sum(), np.maximum(after - known, 0).sum())
    assert sampling == (left_to_prefill == 0).sum()

    emitted = output[rows] + (placeholders > 0) + np.where(left_to_prefill > 0, 0, running + 1)
    left = np.maximum(most[rows] - emitted, 0)
    resolved = (unresolved[rows] == 0) | (not asynchronous)
    can = (lag[rows] == 0) | ((since[rows] >= 4) & (lag[rows] <= 8) & resolved)
    allowed = np.minimum(np.minimum(own[rows], LONGEST), MAX_MODEL_LEN - after - 2)
    allowed = np.where(can, allowed, np.minimum(allowed, 0))
    limits = np.where(left_to_prefill > 0, 0, np.maximum(np.minimum(left - 1, allowed), 0)) * drafts_fit
    phase = np.where(emitted > 1, Phase.DECODE, Phase.FIRST_DECODE)
    phase[left_to_prefill > 0] = Phase.PREFILL
    expected = [numbers[rows], phase, after, emitted, left, lag[rows], classes[rows], limits]
    assert view.tolist() == [column.tolist() for column in expected]
    assert paddable == allowed.min(initial=LONGEST)
    assert can_catch_up(rows, lag, since, unresolved, (4, 8, asynchronous)).tolist() == can.tolist()
    every = longest_drafts(rows, own, columns[COMPUTED], EVERY, LONGEST, MAX_MODEL_LEN)
    assert every.tolist() == np.minimum(np.minimum(own[rows], LONGEST), MAX_MODEL_LEN - after - 2).tolist()


@given(seeds=Seeds, padded=st.booleans(), samples=st.booleans())
def test_a_verification(seeds: list[int], padded: bool, samples: bool) -> None:
    n = len(seeds)
    index, scheduled, emitted, drafted, planned = columns_of(seeds, 4, 5)
    index, scheduled = index - 1, scheduled - 1  # some are past the end
    sampled = (np.arange(n) * 2 % 5 if samples else np.zeros(0)).astype(np.int64)

    found, columns = verified_columns(np.concatenate([index, scheduled, emitted, drafted]), sampled)
    lengths, accepted, truncated = reported_columns(columns[0], columns[1], columns[2], planned, padded)

    number = sampled[np.minimum(index, n - 1)] if samples and n else np.zeros(n, np.int64)
    was_in_step = (index >= 0) & (index < len(sampled)) & (scheduled >= 0) & ((number == 0) | (emitted > 0))
    assert found.tolist() == was_in_step.tolist()
    kept = np.minimum(np.maximum(number - 1, 0), drafted)
    assert columns.tolist() == [(column * was_in_step).tolist() for column in (drafted, kept, emitted)]
    drafted, kept, emitted = columns
    longest = np.minimum(drafted, planned) if padded else drafted
    kept = np.minimum(kept, longest)
    assert lengths.tolist() == longest.tolist()
    assert accepted.tolist() == np.minimum(kept, emitted).tolist()
    assert truncated.tolist() == ((emitted > 0) & (emitted <= kept)).tolist()
