"""A simulated look-up that searches again after drafting, and appends what it finds to the drafter's drafts."""

from __future__ import annotations

import numpy as np

from turbospec.interface import IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.drafter_memory import allocate_most
from turbospec_sim.repeats import LOOKUP, is_false_match, look_up
from turbospec_sim.verification import accepted_of_drafter


@compiled
def append(arrays: EngineArrays, slots: IntArray, limits: IntArray) -> int:
    """Append up to `limits[i]` tokens to the drafter's draft of the request in batch slot `slots[i]`.

    A repeat is found where the draft is right and reaches far enough into it. After a wrong draft, and elsewhere, the
    look-up finds something as often as it does where nothing repeats.

    Returns:
        Requests for which it searched.
    """
    engine, requests = arrays.engine, arrays.requests
    chances, searched = np.zeros(engine[0].max_draft), 0
    for i in range(len(slots)):
        request, limit = requests[slots[i]], limits[i]
        drafts = request.drafts
        if limit == 0 or drafts == 0 or request.source == LOOKUP:
            continue
        searched += 1
        kind, position = arrays.classes[request.class_id], request.emitted + drafts
        right = accepted_of_drafter(arrays, request, drafts, chances) == drafts
        found = look_up(request, kind, drafts).score > 0 if right else is_false_match(request, kind, position)
        room = max(min(limit, engine[0].max_lookup, request.max_tokens - position - 1), 0) if found else 0
        request.appended = allocate_most(engine, request, request.prompt_tokens + position, room, False)
        request.drafts += request.appended
    return searched
