"""Places in hash tables with open addressing, for kernels that keep such a table in an array."""

from __future__ import annotations

import numpy as np

from turbospec.runtime.kernels import compiled


@compiled
def table_bits(places: int) -> int:
    """b, so that a table of 2^b places has `places` places or more, and 8 at least."""
    bits = 3
    while 1 << bits < places:
        bits += 1
    return bits


@compiled
def first_place(value: int, bits: int) -> int:
    """The place of a 64-bit value in a table of 2^bits places, unless another value is there.

    Knuth's multiplicative hash.
    """
    return int(np.int64((np.uint64(value) * np.uint64(11400714819323198485)) >> np.uint64(64 - bits)))
