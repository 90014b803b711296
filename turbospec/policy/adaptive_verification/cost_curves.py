"""Costs that the verify budget is chosen by: two curves, profiled once.

Source: vLLM 0.32, vllm/v1/worker/gpu/spec_decode/adaptive_verification.py: `set_initial_cost_curves`,
`build_cost_tables_from_curves`. vLLM times five dummy steps of every CUDA graph's size and of some larger sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.profile import LatencySample

MIN_VERIFY_SECONDS = 1e-9


class CostCurves:
    """Seconds of drafting the whole block, by rows, and of the target's pass, by tokens. Host time has no part.

    Rows are those of the drafter's first pass (`StepOutcome.draft_rows`): requests, or the draft tokens of a parallel
    drafter that is no batch drafter.

    Args:
        draft: (2, points) rows, rising, and seconds of the drafter's passes.
        verify: (2, points) tokens, rising, and seconds of the target's pass.
        graph_limit: tokens of the largest CUDA graph; up to it a pass costs what the next larger profiled one costs. 0
            where nothing pads; vLLM requires CUDA graphs.
    """

    def __init__(self, draft: FloatArray, verify: FloatArray, graph_limit: int = 0) -> None:
        self._draft = draft
        self._verify = verify
        self._graph_limit = graph_limit

    @classmethod
    def fit(cls, samples: Sequence[LatencySample], graph_limit: int = 0) -> CostCurves | None:
        """Medians of the samples by size; None if no sample shows the cost of drafting whole blocks.

        A sample shows that cost if all its requests have the most drafter passes of any sample. As in the source, only
        passes that fit in a CUDA graph count for drafting.
        """
        even = [sample for sample in samples if sample.shows_drafting and len(set(sample.draft_rows)) == 1]
        deepest = max((len(sample.draft_rows) for sample in even), default=0)
        draft = _medians(
            (sample.draft_rows[0], sample.draft_seconds)
            for sample in even
            if len(sample.draft_rows) == deepest and not 0 < graph_limit < sample.tokens_batched
        )
        if not draft.size:
            return None
        verify = _medians((sample.tokens_batched, sample.verify_seconds) for sample in samples)
        return cls(draft, verify, graph_limit)

    def draft_seconds(self, rows: int) -> float:
        """Predicted seconds of drafting the whole block with so many rows."""
        return max(float(_look_up(self._draft, np.array([rows]), self._graph_limit)[0]), 0.0)

    def verify_seconds(self, tokens: IntArray) -> FloatArray:
        """(m,) predicted seconds of the target's pass over so many tokens."""
        return np.maximum(_look_up(self._verify, tokens, self._graph_limit), MIN_VERIFY_SECONDS)


def _medians(points: Iterable[tuple[int, float]]) -> FloatArray:
    """(2, sizes) each size and the median of its values, made to rise with the size against noise."""
    grouped: defaultdict[int, list[float]] = defaultdict(list)
    for size, seconds in points:
        grouped[size].append(seconds)
    sizes = sorted(grouped)
    medians = np.array([np.median(grouped[size]) for size in sizes])
    return np.array([sizes, np.maximum.accumulate(medians)], np.float64)


def _look_up(curve: FloatArray, sizes: IntArray, graph_limit: int) -> FloatArray:
    """(m,) values of a curve: a staircase up to `graph_limit`, linear between points above it and past the last one."""
    xs, ys = curve
    values = ys[np.minimum(np.searchsorted(xs, sizes, side="left"), len(xs) - 1)]
    # The first size above the limit is not blended with the last one below: leaving CUDA graphs is a jump.
    above, smooth = xs > graph_limit, sizes > graph_limit
    if above.any():
        values[smooth] = np.interp(sizes[smooth], xs[above], ys[above])
    if len(xs) > 1:
        past = sizes > xs[-1]
        values[past] = ys[-1] + (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) * (sizes[past] - xs[-1])
    return values
