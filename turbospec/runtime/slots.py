"""Rows of per-request state, so that what a policy learns about its requests is kept in arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turbospec.interface import IntArray
from turbospec.runtime.hashing import first_place, table_bits
from turbospec.runtime.kernels import compiled, unnamed

NO_SLOTS = np.zeros(0, np.int64)
FREE = -1
"""In place of a slot or a step, where there is none."""
RECENT = 4
"""Steps after which the outcomes of a request that has left are in, and its slot may be given to another one. Under
async scheduling two more steps are planned before a step's outcome."""


class _Table(NamedTuple):
    """Slots by request id, a hash table with open addressing; the arrays are updated in place."""

    places: IntArray
    """(2^b,) at least twice the capacity: the slot at each place; `FREE` for none."""
    owners: IntArray
    """(capacity,) request id of each slot that is not free."""
    last_seen: IntArray
    """(capacity,) the last step of its request; `FREE` for a free slot."""
    free: IntArray
    """(capacity + 1,) free slots, a stack; the last entry is their number."""


class RequestSlots:
    """Maps request ids to rows ("slots") of arrays that the owner keeps.

    Engines do not report the end of a request, and an absent request (preempted, for example) may come back. Slots are
    therefore reclaimed only when the table is full, least recently seen requests first. If most slots belong to
    requests of recent steps, the capacity doubles.

    Args:
        capacity: slots at the start.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.capacity = capacity
        self._table = _new_table(np.zeros(capacity, np.int64), np.full(capacity, FREE))
        self._step = 0
        self._last_ids = b""
        """Bytes of the last step's request ids."""
        self._slots = NO_SLOTS
        _assign(unnamed(self._table), NO_SLOTS, 0)  # compiled here, so that the first step does not wait for it

    def lookup(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Slots of a step's requests; assigns one to each request that has none.

        The capacity may grow: owners must compare the length of their arrays with `capacity` afterwards.

        Args:
            request_ids: (n,) without duplicates.

        Returns:
            slots: (n,) the slot of each request; read-only.
            new: those of the slots that were assigned now. The owner must reset their state.
        """
        ids = request_ids.tobytes()
        if ids == self._last_ids:  # most steps run the same requests as the step before
            return self._slots, NO_SLOTS
        self._last_ids = ids
        self._step += 1
        missing, self._slots, new = _assign(unnamed(self._table), request_ids, self._step)
        if missing:
            self._reclaim(missing)
            _, self._slots, new = _assign(unnamed(self._table), request_ids, self._step)
        return self._slots, new

    def _reclaim(self, needed: int) -> None:
        """Free at least `needed` slots: those of requests that were in no recent step, then new ones."""
        owners, last_seen = self._table.owners, self._table.last_seen
        free = int(self._table.free[-1])
        idle = ((last_seen != FREE) & (last_seen < self._step - RECENT)).nonzero()[0]
        idle = idle[np.argsort(last_seen[idle], kind="stable")]
        # Half of the idle slots at a time, and more slots where few are idle, so that sorting is rare.
        reclaimed = idle[: max(len(idle) // 2, needed)]
        last_seen[reclaimed] = FREE
        free += len(reclaimed)
        while free < max(needed, self.capacity // 8):
            owners = np.concatenate([owners, np.zeros(self.capacity, np.int64)])
            last_seen = np.concatenate([last_seen, np.full(self.capacity, FREE)])
            free += self.capacity
            self.capacity *= 2
        self._table = _new_table(owners, last_seen)


def _new_table(owners: IntArray, last_seen: IntArray) -> _Table:
    """The table of the slots that are not free; the arrays are as in `_Table`."""
    capacity = len(owners)
    free = np.zeros(capacity + 1, np.int64)
    slots = (last_seen == FREE).nonzero()[0]
    free[: len(slots)], free[-1] = slots[::-1], len(slots)
    table = _Table(np.full(1 << table_bits(2 * capacity), FREE), owners, last_seen, free)
    _insert_all(unnamed(table))
    return table


@compiled
def _place(places: IntArray, owners: IntArray, request_id: int, bits: int) -> int:
    """The place of a request, or the free one where it would be."""
    place, last = first_place(request_id, bits), len(places) - 1
    while places[place] != FREE and owners[places[place]] != request_id:
        place = (place + 1) & last
    return place


@compiled
def _insert_all(table: _Table) -> None:
    places, owners, last_seen, _ = table
    bits = table_bits(len(places))
    for slot in range(len(owners)):
        if last_seen[slot] != FREE:
            places[_place(places, owners, owners[slot], bits)] = slot


@compiled
def _assign(table: _Table, request_ids: IntArray, step: int) -> tuple[int, IntArray, IntArray]:
    """Find and assign slots.

    Returns:
        missing: slots needed, where there are too few free ones and none is assigned; 0 otherwise.
        slots: (n,)
        new: those of the slots that were assigned now.
    """
    places, owners, last_seen, free = table
    bits, slots, missing = table_bits(len(places)), np.empty(len(request_ids), np.int64), 0
    for i in range(len(request_ids)):
        slots[i] = places[_place(places, owners, request_ids[i], bits)]
        if slots[i] == FREE:
            missing += 1
        else:
            last_seen[slots[i]] = step
    if missing > free[-1]:
        return missing, slots, slots[:0]
    new, assigned = np.empty(missing, np.int64), 0
    for i in range(len(request_ids)):
        if slots[i] == FREE:
            free[-1] -= 1
            slot = slots[i] = free[free[-1]]
            owners[slot], last_seen[slot] = request_ids[i], step
            places[_place(places, owners, request_ids[i], bits)] = slot
            new[assigned] = slot
            assigned += 1
    return 0, slots, new
