"""When clients get their tokens, and what is kept of it: two numbers a request and a histogram of gaps."""

from __future__ import annotations

import math

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.runtime.kernels import compiled
from turbospec_sim.records import SLOT, Records
from turbospec_sim.scheduling import send_next

GAP_MIN, GAP_MAX = 1e-6, 1e5
"""Seconds between emissions that the histogram tells apart; what lies beyond counts as its first or last bin."""
BINS_PER_E = 1000.0
"""Bins of a gap's natural logarithm: each is 0.1 % wide."""
GAP_BINS = math.ceil(math.log(GAP_MAX / GAP_MIN) * BINS_PER_E)


@compiled
def emit(
    engine: Records,
    totals: Records,
    gaps: IntArray,
    requests: Records,
    offered: Records,
    batch: IntArray,
    size: int,
    now: float,
) -> None:
    """Hand the tokens of the step that was just verified to their clients, each request's as one event."""
    state, sums = engine[0], totals[0]
    for place in range(size):
        request = requests[batch[SLOT, place]]
        if request.step_emitted == 0:
            continue
        asked = offered[request.index]
        if request.emitted == request.step_emitted:
            asked.ttft = now - asked.sent
        elif request.index >= state.first_measured:
            gap = now - request.last_emission
            place_of_gap = GAP_BINS - 1
            if gap < GAP_MAX:
                place_of_gap = min(int(math.log(max(gap, GAP_MIN) / GAP_MIN) * BINS_PER_E), place_of_gap)
            gaps[place_of_gap] += 1
            sums.gaps += 1
            sums.gap_seconds += gap
            sums.gap_seconds_squared += gap * gap
        request.last_emission = now
        if request.emitted == request.output_tokens:
            asked.latency = now - asked.sent
            state.finished += 1
            send_next(engine, offered, now)


def gap_percentiles(gaps: IntArray, percentiles: FloatArray) -> FloatArray:
    """Percentiles of the gaps in seconds, to within half of a bin (0.05 %); NaN where there are none."""
    counts = np.cumsum(gaps)
    if counts[-1] == 0:
        return np.full(len(percentiles), math.nan)
    ranks = percentiles / 100.0 * (counts[-1] - 1) + 0.5
    middles = GAP_MIN * np.exp((np.arange(GAP_BINS) + 0.5) / BINS_PER_E)
    return middles[np.searchsorted(counts, ranks)]
