"""When the requests of a trace arrived, as far as it tells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec.telemetry.trace import TraceStep
from turbospec.types import FloatArray


def arrivals(steps: Sequence[TraceStep], first_lines: Sequence[int], last_lines: Sequence[int]) -> FloatArray:
    """(n,) latest moments at which the requests can have arrived, on the trace's clock.

    A request was there when a step had it first. If requests were waiting before, the next ones to be admitted were
    among them, the first of these since `waiting_seconds`. Where a request is away from the batch and comes back later
    the queue may begin with that one, and says nothing of the new ones.

    Args:
        steps: in the order of time.
        first_lines: (n,) the first step that each request is in, rising.
        last_lines: (n,) the last.
    """
    came = np.array([steps[line].now for line in first_lines])
    begun = np.searchsorted(first_lines, np.arange(len(steps)), side="right")
    ended = np.searchsorted(np.sort(last_lines), np.arange(len(steps)), side="left")
    for line, step in enumerate(steps):
        head = begun[line]
        if not step.waiting_requests or head - ended[line] > len(step.request_ids):
            continue
        waited = came[head : head + step.waiting_requests]
        np.minimum(waited, step.now, out=waited)
        waited[:1] = np.minimum(waited[:1], step.now - step.waiting_seconds)
    # Admission is in order: whoever was admitted before the head of a queue came before it.
    return np.minimum.accumulate(came[::-1])[::-1] if len(came) else came
