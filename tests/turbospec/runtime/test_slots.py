"""Request slots: stable, recycled, never shared."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.runtime.slots import RequestSlots


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=12, unique=True), max_size=40))
def test_live_requests_never_share_a_slot(steps: list[list[int]]) -> None:
    slots = RequestSlots(capacity=8)
    for ids in steps:
        found, fresh = slots.lookup(np.array(ids, np.int64))
        assert len(set(found.tolist())) == len(ids)
        assert set(fresh.tolist()) <= set(found.tolist())
        assert all(0 <= slot < slots.capacity for slot in found)
        again, none_fresh = slots.lookup(np.array(ids, np.int64))
        assert again.tolist() == found.tolist()
        assert len(none_fresh) == 0


def test_memory_is_bounded_by_the_live_requests() -> None:
    slots = RequestSlots(capacity=16)
    for first in range(0, 10_000, 5):
        slots.lookup(np.arange(first, first + 5))
    assert slots.capacity == 16


def test_a_request_seen_lately_keeps_its_slot() -> None:
    slots = RequestSlots(capacity=8)
    (kept,), _ = slots.lookup(np.array([1]))
    for other in range(2, 40):
        slots.lookup(np.array([other]))
        (slot,), fresh = slots.lookup(np.array([1]))
        assert slot == kept
        assert len(fresh) == 0
