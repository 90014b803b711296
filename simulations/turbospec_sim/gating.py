"""A simulated drafter that asks a plan's gate after each of its passes."""

from __future__ import annotations

import numpy as np

from turbospec.interface import DraftGate, FloatArray, IntArray


def gated_drafts(gate: DraftGate, lengths: IntArray, confidence: FloatArray) -> tuple[IntArray, IntArray]:
    """Draft one token in each pass for the requests that the gate lets go on.

    Args:
        gate: of a plan.
        lengths: (n,) planned draft lengths; 0 where the gate is not asked.
        confidence: (n, longest draft) the drafter's confidence in each token.

    Returns:
        proposed: (n,) tokens drafted.
        kept: (n,) of these, tokens to verify; the gate may drop the last one.
    """
    proposed, kept = np.zeros((2, len(lengths)), np.int64)
    rows, depth = np.flatnonzero(lengths), 0
    while len(rows):
        keep, more = gate.advance(rows, confidence[rows, depth])
        depth += 1
        proposed[rows] = depth
        kept[rows] += keep
        rows = rows[keep & more & (lengths[rows] > depth)]
    return proposed, kept
