"""How a run went over simulated time: its sums at few moments, however long it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec.runtime.kernels import compiled
from turbospec_sim.records import TOTALS, Records

MARKS = 200
"""Moments at which the sums are kept, at most."""


@compiled
def mark(engine: Records, totals: Records, now: float) -> None:
    """Keep the sums of a run at the end of a step, if that is due.

    Where there is no place left, every second mark is dropped and they are made twice as far apart: first every step
    has one, and a long run between half of `MARKS` and all of them.
    """
    state = engine[0]
    totals[0].at = now
    if now < state.next_mark:
        return
    if state.marks == MARKS:
        for kept in range(1, MARKS // 2 + 1):
            totals[kept] = totals[2 * kept]
        state.marks = MARKS // 2
        state.mark_seconds = (now - state.origin) / (MARKS // 2)
    state.marks += 1
    totals[state.marks] = totals[0]
    state.next_mark = now + state.mark_seconds


def timeline(engine: Records, totals: Records) -> dict[str, Any]:
    """Means over the stretches between the marks of a run, as plain lists of equal lengths; empty without steps.

    `seconds` is where a stretch begins, from the beginning of the measured part. `draft_length` is for each decoding
    request and step, `acceptance` a share of the draft tokens, both NaN where there were none; `decoding_requests` is a
    mean over steps, `running_requests` and `waiting_requests` are means over time, NaN where none passed.
    """
    began = np.zeros(1, TOTALS)
    began["at"] = engine["origin"][0]
    marks = np.concatenate([began, totals[1 : 1 + int(engine["marks"][0])], totals[:1]])
    marks = marks[np.diff(marks["steps"], prepend=-1) > 0]
    if len(marks) < 2:
        return {}
    sums = {name: np.diff(marks[name]).astype(np.float64) for name in TOTALS.names or ()}
    drafted = sums["drafted"]
    decoding, seconds = (np.where(sums[name] > 0, sums[name], np.nan) for name in ("decode_rows", "at"))
    series = {
        "seconds": marks["at"][:-1] - began["at"],
        "decoding_requests": sums["decode_rows"] / sums["steps"],
        "draft_length": drafted / decoding,
        "acceptance": sums["accepted"] / np.where(drafted > 0, drafted, np.nan),
        "running_requests": sums["running_seconds"] / seconds,
        "waiting_requests": sums["waiting_seconds"] / seconds,
    }
    return {name: np.round(values, 4).tolist() for name, values in series.items()}
