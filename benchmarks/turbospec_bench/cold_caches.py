"""Empties the processor's caches, as a model's step does between two decisions of an engine."""

from __future__ import annotations

from functools import cache

import numpy as np

from turbospec.interface import FloatArray

SWEPT_BYTES = 64 * 2**20


def empty_caches() -> None:
    """Read and write `SWEPT_BYTES`, many times what the caches of one core hold."""
    swept = _swept()
    swept += 1.0


@cache
def _swept() -> FloatArray:
    return np.zeros(SWEPT_BYTES // 8)
