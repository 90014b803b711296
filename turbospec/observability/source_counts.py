"""What each source drafted in a step, in engines with a look-up beside the drafter."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from turbospec.interface import IntArray, Source


def source_counts(
    sources: ArrayLike, drafted: ArrayLike, accepted: ArrayLike, appended: ArrayLike | None = None
) -> IntArray:
    """(sources, 3) drafts verified, draft tokens and accepted tokens of each `Source`; arguments have shape (n,).

    What the look-up appended to a draft counts as a draft of the look-up.
    """
    counts = np.zeros((len(Source), 3), np.int64)
    drafted, accepted = np.asarray(drafted), np.asarray(accepted)
    if appended is not None:
        first = drafted - np.asarray(appended)
        more = np.maximum(accepted - first, 0)
        counts[Source.LOOKUP] = np.count_nonzero(appended), np.sum(appended), more.sum()
        drafted, accepted = first, accepted - more
    np.add.at(counts, np.asarray(sources), np.stack([drafted > 0, drafted, accepted], axis=1))
    return counts
