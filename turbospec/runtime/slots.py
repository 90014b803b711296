"""Rows of per-request state, so that what a policy learns about its requests is kept in arrays."""

from __future__ import annotations

import numpy as np

from turbospec.interface import IntArray

NO_SLOTS = np.zeros(0, np.int64)


class RequestSlots:
    """Maps request ids to rows ("slots") of arrays that the owner keeps.

    Engines do not report the end of a request, and an absent request (preempted, for example) may come back. Slots are
    therefore reclaimed only when the table is full, least recently seen requests first. If most slots belong to
    requests of the current step, the capacity doubles.

    Args:
        capacity: slots at the start.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self.capacity = capacity
        self._slot_of: dict[int, int] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._last_seen = np.zeros(capacity, np.int64)
        self._clock = 0
        self._ids = np.zeros(0, np.int64)
        self._slots = np.zeros(0, np.int64)

    def lookup(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Slots of a step's requests; assigns one to each request that has none.

        The capacity may grow: owners must compare the length of their arrays with `capacity` afterwards.

        Args:
            request_ids: (n,) without duplicates.

        Returns:
            slots: (n,) the slot of each request; read-only.
            new: those of the slots that were assigned now. The owner must reset their state.
        """
        # Most steps run the same requests as the step before, or all but a few of them.
        if len(request_ids) == len(self._ids):
            changed = (request_ids != self._ids).nonzero()[0]
            if not len(changed):
                return self._slots, NO_SLOTS
            slots = self._slots.copy()
        else:
            slots = np.empty(len(request_ids), np.int64)
            changed = np.arange(len(request_ids))
        self._last_seen[self._slots] = self._clock
        self._clock += 1
        new: list[int] = []
        slots[changed] = [self._slot_of.get(request_id, -1) for request_id in request_ids[changed].tolist()]
        missing = (slots < 0).nonzero()[0].tolist()
        if len(missing) > len(self._free):
            self._last_seen[slots[slots >= 0]] = self._clock
            self._reclaim(len(missing))
        for row in missing:
            slots[row] = self._slot_of[int(request_ids[row])] = self._free.pop()
            new.append(int(slots[row]))
        self._ids, self._slots = request_ids.copy(), slots
        self._last_seen[slots] = self._clock
        return slots, np.array(new, np.int64)

    def _reclaim(self, needed: int) -> None:
        """Free at least `needed` slots: those of requests not in this step, then new ones."""
        idle = [(self._last_seen[slot], request_id, slot) for request_id, slot in self._slot_of.items()]
        idle = sorted(entry for entry in idle if entry[0] < self._clock)
        # Half of the idle slots at a time, and more slots where few are idle, so that sorting is rare.
        for _, request_id, slot in idle[: max(len(idle) // 2, needed)]:
            del self._slot_of[request_id]
            self._free.append(slot)
        while len(self._free) < max(needed, self.capacity // 8):
            self._free.extend(range(2 * self.capacity - 1, self.capacity - 1, -1))
            self._last_seen = np.concatenate([self._last_seen, np.zeros(self.capacity, np.int64)])
            self.capacity *= 2
