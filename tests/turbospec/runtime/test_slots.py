"""Request slots: stable while a request is seen, recycled, never shared."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turbospec.runtime.slots import RECENT, RequestSlots


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=12, unique=True), max_size=40))
def test_live_requests_never_share_a_slot(steps: list[list[int]]) -> None:
    slots = RequestSlots(capacity=8)
    for ids in steps:
        found, new = slots.lookup(np.array(ids, np.int64))
        assert len(set(found.tolist())) == len(ids)
        assert set(new.tolist()) <= set(found.tolist())
        assert all(0 <= slot < slots.capacity for slot in found)
        again, none_new = slots.lookup(np.array(ids, np.int64))
        assert again.tolist() == found.tolist()
        assert len(none_new) == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=12, unique=True), max_size=60))
def test_a_slot_that_changes_hands_is_reported_as_new(steps: list[list[int]]) -> None:
    """The owner resets exactly the slots reported as new; every other slot must still belong to the same request."""
    slots = RequestSlots(capacity=8)
    owner: dict[int, int] = {}
    for place, ids in enumerate(steps):
        capacity = slots.capacity
        found, new = slots.lookup(np.array(ids, np.int64))
        for request_id, slot in zip(ids, found.tolist(), strict=True):
            if slot in new:
                owner[slot] = request_id
            assert owner[slot] == request_id
        different = [each for each, _ in groupby(steps[: place + 1])]
        recent = {each for earlier in different[-RECENT - 1 :] for each in earlier}
        assert slots.capacity == capacity or slots.capacity <= 3 * max(len(recent), 8), "it grows for recent ones"


def test_all_of_a_step_that_exceeds_the_capacity_hold_slots() -> None:
    slots = RequestSlots(capacity=4)
    found, new = slots.lookup(np.arange(100))
    assert len(set(found.tolist())) == 100
    assert sorted(new.tolist()) == sorted(found.tolist())
    assert found.max() < slots.capacity == 128


def test_memory_is_bounded_by_the_live_requests() -> None:
    slots = RequestSlots(capacity=16)
    for first in range(0, 10_000, 5):
        slots.lookup(np.arange(first, first + 5))
    assert slots.capacity == 32, "requests of the last steps keep their slots"


def test_a_request_seen_recently_keeps_its_slot() -> None:
    slots = RequestSlots(capacity=8)
    (kept,), _ = slots.lookup(np.array([1]))
    for other in range(2, 40):
        slots.lookup(np.array([other]))
        (slot,), new = slots.lookup(np.array([1]))
        assert slot == kept
        assert len(new) == 0


def test_the_slot_of_a_request_whose_outcome_may_still_be_out_goes_to_no_other() -> None:
    """Of a full table, the five requests that left in the step before are not replaced."""
    slots = RequestSlots(capacity=16)
    left, _ = slots.lookup(np.arange(16))
    found, new = slots.lookup(np.arange(5, 21))
    assert not set(new.tolist()) & set(left[:5].tolist())
    assert len(set(found.tolist())) == 16
