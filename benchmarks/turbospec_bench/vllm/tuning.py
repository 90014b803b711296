"""Tunes vLLM's own table of draft lengths by batch size as a careful user would: every K is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from turbospec_bench.vllm.speculation import Lengths

Measured = Mapping[int, Mapping[int, Sequence[float]]]
"""Tokens/s by concurrency, then by K, one value per run; all Ks served the same requests."""


def tune(measured: Measured) -> Lengths:
    """For the batch sizes around each concurrency, the K of the highest geometric mean.

    K = 0 was measured in a server without speculation. In a server with a table the drafter's first pass still runs, so
    K = 0 will be slightly slower than measured.
    """
    ends = _ends(sorted(measured))
    starts = [1, *(end + 1 for end in ends[:-1])]
    return [(start, end, _best(measured[c])) for start, end, c in zip(starts, ends, sorted(measured), strict=True)]


def _ends(concurrencies: Sequence[int]) -> list[int]:
    """Last batch size of each range: halfway to the next concurrency, by ratio."""
    return [*(math.isqrt(low * high) for low, high in pairwise(concurrencies)), concurrencies[-1]]


def _best(measured: Mapping[int, Sequence[float]]) -> int:
    return max(measured, key=lambda length: float(np.mean(np.log(measured[length]))))
