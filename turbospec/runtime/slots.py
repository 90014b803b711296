"""Slots for per-request state, so that what a policy knows of its requests lives in arrays."""

from __future__ import annotations

import numpy as np

from turbospec.interface import IntArray

NONE = np.zeros(0, np.int64)


class RequestSlots:
    """Maps request ids to rows of arrays that its owner keeps, and recycles the rows of requests long unseen.

    Engines do not report a request's end; a request that is absent (preempted, say) may come back. Slots are therefore
    reclaimed only when the table is full, from the requests unseen for longest; if all are in use, it doubles.
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
        """Slots of these requests, and those among the slots that are new and must be reset by the owner.

        The capacity may have grown: owners compare their arrays with `capacity` afterwards. The arrays are not to be
        written to.
        """
        # Most steps run the requests of the step before, or all but a few of them.
        if len(request_ids) == len(self._ids):
            changed = np.flatnonzero(request_ids != self._ids)
            if not len(changed):
                return self._slots, NONE
            slots = self._slots.copy()
        else:
            slots = np.empty(len(request_ids), np.int64)
            changed = np.arange(len(request_ids))
        self._last_seen[self._slots] = self._clock
        self._clock += 1
        fresh: list[int] = []
        slots[changed] = [self._slot_of.get(request_id, -1) for request_id in request_ids[changed].tolist()]
        missing = np.flatnonzero(slots < 0).tolist()
        if len(missing) > len(self._free):
            self._last_seen[slots[slots >= 0]] = self._clock
            self._reclaim(len(missing))
        for row in missing:
            slots[row] = self._slot_of[int(request_ids[row])] = self._free.pop()
            fresh.append(int(slots[row]))
        self._ids, self._slots = request_ids.copy(), slots
        self._last_seen[slots] = self._clock
        return slots, np.array(fresh, np.int64)

    def _reclaim(self, needed: int) -> None:
        idle = [(self._last_seen[slot], request_id, slot) for request_id, slot in self._slot_of.items()]
        idle = sorted(entry for entry in idle if entry[0] < self._clock)
        # Half of the idle at a time, so that the sort is paid rarely.
        for _, request_id, slot in idle[: max(len(idle) // 2, needed)]:
            del self._slot_of[request_id]
            self._free.append(slot)
        while len(self._free) < needed:
            self._free.extend(range(2 * self.capacity - 1, self.capacity - 1, -1))
            self._last_seen = np.concatenate([self._last_seen, np.zeros(self.capacity, np.int64)])
            self.capacity *= 2
