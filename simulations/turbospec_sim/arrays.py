"""The arrays of a simulated engine, as one argument of compiled functions."""

from __future__ import annotations

from typing import NamedTuple

from turbospec.interface import FloatArray, IntArray
from turbospec_sim.records import Records


class EngineArrays(NamedTuple):
    """Everything that the compiled parts of a step read and write.

    A compiled function that Python calls once a step takes these as `*arrays` and packs them again: from Python, numba
    unboxes loose arrays twice as fast as a tuple of them, and a simulated step takes only about 20 µs. Compiled
    functions pass the tuple on to one another at no cost.
    """

    engine: Records
    """(1,) `ENGINE` record."""
    requests: Records
    """(max_num_seqs,) `REQUEST` records, one for each batch slot."""
    queues: IntArray
    """(3, max_num_seqs) running requests, preempted requests, free batch slots."""
    batch: IntArray
    """(2, max_num_seqs) batch slots of the step's requests, and the tokens that each computes."""
    offered: Records
    """(all requests of the run,) `OFFERED` records, in the order in which they are sent."""
    classes: Records
    """(classes,) `CLASS` records."""
    rates: FloatArray
    """(classes, 3, MAX_POSITIONS) as in `acceptance.AcceptanceTables`, and so are the next two."""
    lines: IntArray
    values: FloatArray
    curve: FloatArray
    """(2, knots) as in `step_time.StepTimes`."""
    padding: IntArray
    """(sizes,) tokens to which CUDA graphs pad the target's pass, rising."""
    graph_lengths: IntArray
    """(lengths,) draft lengths with full CUDA graphs, rising; empty where the mix of lengths makes no difference."""
    changes: FloatArray
    """(changes, 4) as in `step_time.StepTimes`."""
    totals: Records
    """(1 + snapshots,) `TOTALS` records."""
    gaps: IntArray
    """(bins,) histogram of the seconds between a request's emissions."""
