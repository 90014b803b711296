"""Estimates the arrival times of a trace's requests, and the time between its steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec.interface import FloatArray
from turbospec.observability.trace import TraceStep

LONGEST_STEP = 1.5
"""Most time from a step's beginning to the next one's, in multiples of its duration; above, the engine was idle."""


def estimate_arrivals(steps: Sequence[TraceStep], first_lines: Sequence[int], last_lines: Sequence[int]) -> FloatArray:
    """(n,) estimated arrival times of the requests, on the trace's clock.

    A request has arrived before the first step that it is in. If a step reports w waiting requests, the next w requests
    to be admitted had arrived, the first of them `waiting_seconds` before. Where a request is missing from the batch
    and comes back later, the head of the waiting queue may be that (preempted) request; such steps say nothing about
    new ones.

    A request that is first seen in a step arrived while the step before ran. The estimate is the middle of that step:
    at its end, a replay that is slightly faster would admit the request one step too late.

    Args:
        steps: in the order of time.
        first_lines: (n,) index of the first step that each request is in, rising.
        last_lines: (n,) index of the last one.
    """
    seen = np.array([step.now for step in steps])
    since = np.diff(seen, prepend=seen[0])
    # After a longer pause the engine was idle, and the step began with the request's arrival.
    busy = since[1:] <= LONGEST_STEP * np.array([step.step_seconds for step in steps[:-1]])
    seen[1:] -= np.where(busy, 0.5 * since[1:], 0.0)
    arrived = seen[np.asarray(first_lines, np.int64)]
    begun = np.searchsorted(first_lines, np.arange(len(steps)), side="right")
    ended = np.searchsorted(np.sort(last_lines), np.arange(len(steps)), side="left")
    for line, step in enumerate(steps):
        head = begun[line]
        if not step.waiting_requests or head - ended[line] > len(step.request_ids):
            continue
        waited = arrived[head : head + step.waiting_requests]
        np.minimum(waited, seen[line], out=waited)
        waited[:1] = np.minimum(waited[:1], step.now - step.waiting_seconds)
    # Admission is first come, first served: requests admitted before the head of a queue arrived before it.
    return np.minimum.accumulate(arrived[::-1])[::-1] if len(arrived) else arrived


def seconds_between(steps: Sequence[TraceStep]) -> float:
    """Mean seconds from a step's end to the next one's beginning (observing, emitting).

    Steps after which the engine was idle do not count.

    Args:
        steps: in the order of time.
    """
    since = np.diff([step.now for step in steps])
    took = np.array([step.step_seconds for step in steps[:-1]])
    busy = since <= LONGEST_STEP * took
    return max(float((since - took)[busy].mean()), 0.0) if busy.any() else 0.0
