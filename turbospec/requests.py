"""Slots for per-request state, so that what a policy knows of its requests lives in arrays."""

from __future__ import annotations

import numpy as np

from turbospec.types import IntArray


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
        self._key = b""
        self._slots = np.zeros(0, np.int64)

    def lookup(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Slots of these requests, and those among the slots that are new and must be reset by the owner.

        The capacity may have grown: owners compare their arrays with `capacity` afterwards.
        """
        self._clock += 1
        key = request_ids.tobytes()
        if key == self._key:  # most steps run the requests of the step before
            self._last_seen[self._slots] = self._clock
            return self._slots, self._slots[:0]
        ids = request_ids.tolist()
        known = [self._slot_of.get(request_id, -1) for request_id in ids]
        present = np.array([slot for slot in known if slot >= 0], np.int64)
        self._last_seen[present] = self._clock
        missing = [row for row, slot in enumerate(known) if slot < 0]
        if len(missing) > len(self._free):
            self._reclaim(len(missing))
        fresh: list[int] = []
        for row in missing:
            slot = self._free.pop()
            self._slot_of[ids[row]] = known[row] = slot
            fresh.append(slot)
        self._slots = np.array(known, np.int64)
        self._last_seen[self._slots] = self._clock
        self._key = key
        return self._slots, np.array(fresh, np.int64)

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
