"""When the requests of a trace arrived, and what passed between its steps, as far as it tells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec.interface import FloatArray
from turbospec.observability.trace import TraceStep

LONGEST_STEP = 1.5
"""Seconds from one step to the next that count as the first one's, for each second that it took by its own account."""


def arrivals(steps: Sequence[TraceStep], first_lines: Sequence[int], last_lines: Sequence[int]) -> FloatArray:
    """(n,) moments at which the requests arrived, on the trace's clock, as far as it tells.

    A request was there when a step had it first. If requests were waiting before, the next ones to be admitted were
    among them, the first of these since `waiting_seconds`. Where a request is away from the batch and comes back later
    the queue may begin with that one, and says nothing of the new ones.

    What is first seen in a step came while the step before ran, and is put in its middle: at its end, a replay whose
    clock is a hair faster would let it miss a step.

    Args:
        steps: in the order of time.
        first_lines: (n,) the first step that each request is in, rising.
        last_lines: (n,) the last.
    """
    seen = np.array([step.now for step in steps])
    since = np.diff(seen, prepend=seen[0])
    # After a longer pause the engine was idle, and began with the request.
    busy = since[1:] <= LONGEST_STEP * np.array([step.step_seconds for step in steps[:-1]])
    seen[1:] -= np.where(busy, 0.5 * since[1:], 0.0)
    came = seen[np.asarray(first_lines, np.int64)]
    begun = np.searchsorted(first_lines, np.arange(len(steps)), side="right")
    ended = np.searchsorted(np.sort(last_lines), np.arange(len(steps)), side="left")
    for line, step in enumerate(steps):
        head = begun[line]
        if not step.waiting_requests or head - ended[line] > len(step.request_ids):
            continue
        waited = came[head : head + step.waiting_requests]
        np.minimum(waited, seen[line], out=waited)
        waited[:1] = np.minimum(waited[:1], step.now - step.waiting_seconds)
    # Admission is in order: whoever was admitted before the head of a queue came before it.
    return np.minimum.accumulate(came[::-1])[::-1] if len(came) else came


def seconds_between(steps: Sequence[TraceStep]) -> float:
    """Mean seconds from a step's end to the next one's beginning: the controller learns, the client takes its tokens.

    Steps after which the engine was idle do not count.

    Args:
        steps: in the order of time.
    """
    since = np.diff([step.now for step in steps])
    took = np.array([step.step_seconds for step in steps[:-1]])
    busy = since <= LONGEST_STEP * took
    return max(float((since - took)[busy].mean()), 0.0) if busy.any() else 0.0
