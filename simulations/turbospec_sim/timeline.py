"""How a run went over simulated time: snapshots of its totals, of bounded number however long the run is."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec.runtime.kernels import compiled
from turbospec_sim.records import TOTALS, Records

MAX_SNAPSHOTS = 200


@compiled
def take_snapshot(engine: Records, totals: Records, now: float) -> None:
    """Keep a copy of the totals at the end of a step, if one is due.

    At first each step has a snapshot. When `MAX_SNAPSHOTS` are kept, every second one is dropped and they are made
    twice as far apart, so that a long run has between half of `MAX_SNAPSHOTS` and all of them.
    """
    state = engine[0]
    totals[0].at = now
    if now < state.next_snapshot:
        return
    if state.snapshots == MAX_SNAPSHOTS:
        for kept in range(1, MAX_SNAPSHOTS // 2 + 1):
            totals[kept] = totals[2 * kept]
        state.snapshots = MAX_SNAPSHOTS // 2
        state.snapshot_seconds = (now - state.origin) / (MAX_SNAPSHOTS // 2)
    state.snapshots += 1
    totals[state.snapshots] = totals[0]
    state.next_snapshot = now + state.snapshot_seconds


def timeline(engine: Records, totals: Records) -> dict[str, Any]:
    """Means over the intervals between the snapshots of a run, as plain lists of equal lengths; empty without steps.

    `seconds` is where an interval begins, since the measured part began. `draft_length` is for each decoding request
    and step, `acceptance` is the share of draft tokens accepted, both NaN where there were none; `decoding_requests` is
    a mean over steps; `running_requests` and `waiting_requests` are means over time, NaN where no time passed.
    """
    began = np.zeros(1, TOTALS)
    began["at"] = engine["origin"][0]
    snapshots = np.concatenate([began, totals[1 : 1 + int(engine["snapshots"][0])], totals[:1]])
    snapshots = snapshots[np.diff(snapshots["steps"], prepend=-1) > 0]
    if len(snapshots) < 2:
        return {}
    sums = {name: np.diff(snapshots[name]).astype(np.float64) for name in TOTALS.names or ()}
    drafted = sums["drafted"]
    decoding, seconds = (np.where(sums[name] > 0, sums[name], np.nan) for name in ("decode_rows", "at"))
    series = {
        "seconds": snapshots["at"][:-1] - began["at"],
        "decoding_requests": sums["decode_rows"] / sums["steps"],
        "draft_length": drafted / decoding,
        "acceptance": sums["accepted"] / np.where(drafted > 0, drafted, np.nan),
        "running_requests": sums["running_seconds"] / seconds,
        "waiting_requests": sums["waiting_seconds"] / seconds,
    }
    return {name: np.round(values, 4).tolist() for name, values in series.items()}
