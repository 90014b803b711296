"""What each source drafted in a step, in engines with a look-up beside the drafter."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from turbospec.interface import IntArray, Source


def source_counts(sources: ArrayLike, drafted: ArrayLike, accepted: ArrayLike) -> IntArray:
    """(sources, 3) drafts verified, draft tokens and accepted tokens of each `Source`; arguments have shape (n,)."""
    counts, drafted = np.zeros((len(Source), 3), np.int64), np.asarray(drafted)
    np.add.at(counts, np.asarray(sources), np.stack([drafted > 0, drafted, np.asarray(accepted)], axis=1))
    return counts
