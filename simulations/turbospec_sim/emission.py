"""When clients get their tokens, and what is kept of it: two numbers a request and a histogram of gaps."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.records import SLOT
from turbospec_sim.scheduling import send_next

GAP_MIN, GAP_MAX = 1e-6, 1e5
"""Range of the histogram, in seconds between a request's emissions; what lies outside counts in the end bins."""
BINS_PER_E = 1000.0
"""Bins for each factor e of a gap: a bin is 0.1 % wide."""
GAP_BINS = math.ceil(math.log(GAP_MAX / GAP_MIN) * BINS_PER_E)


@compiled
def emit(arrays: EngineArrays, size: int, now: float) -> None:
    """Hand the tokens that the step's `size` requests emit to their clients, each request's as one event."""
    engine, requests, offered, batch, gaps = arrays.engine, arrays.requests, arrays.offered, arrays.batch, arrays.gaps
    state, sums = engine[0], arrays.totals[0]
    for row in range(size):
        request = requests[batch[SLOT, row]]
        if request.step_emitted == 0:
            continue
        asked = offered[request.index]
        if request.emitted == request.step_emitted:
            asked.ttft = now - asked.sent
        elif request.index >= state.first_measured:
            gap = now - request.last_emission
            gap_bin = GAP_BINS - 1
            if gap < GAP_MAX:
                gap_bin = min(int(math.log(max(gap, GAP_MIN) / GAP_MIN) * BINS_PER_E), gap_bin)
            gaps[gap_bin] += 1
            sums.gaps += 1
            sums.gap_seconds += gap
            sums.gap_seconds_squared += gap * gap
        request.last_emission = now
        if request.emitted == request.output_tokens:
            asked.latency = now - asked.sent
            state.finished += 1
            send_next(engine, offered, now)


def gap_percentiles(gaps: IntArray, percentiles: FloatArray) -> FloatArray:
    """(percentiles,) gaps in seconds, interpolated as by numpy, to within half of a bin (0.05 %); NaN without gaps."""
    counts = np.cumsum(gaps)
    if counts[-1] == 0:
        return np.full(len(percentiles), math.nan)
    places = percentiles / 100.0 * (counts[-1] - 1)
    middles = GAP_MIN * np.exp((np.arange(GAP_BINS) + 0.5) / BINS_PER_E)
    below, above = (middles[np.searchsorted(counts, place + 1.0)] for place in (np.floor(places), np.ceil(places)))
    return below + (places - np.floor(places)) * (above - below)
