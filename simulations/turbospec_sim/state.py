"""Everything that a simulated engine remembers, in arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turbospec.interface import IntArray
from turbospec_sim.emission import GAP_BINS
from turbospec_sim.records import FREE_ROWS, REQUEST, TOTALS, Records
from turbospec_sim.step_time import StepTimes
from turbospec_sim.acceptance import Texts
from turbospec_sim.timeline import MARKS


@dataclass(slots=True)
class EngineState:
    """The arrays that the parts of a step share.

    Args:
        engine: (1,) `ENGINE` record with its settings; the rest of it is set here.
        offered: the requests of the run, warm-up first; see `workload.offered`.
        concurrency: clients of a closed loop; None where requests come by their times.
    """

    engine: Records
    offered: Records
    texts: Texts
    times: StepTimes
    concurrency: int | None = None
    view_slots: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(n,) rows of the requests in the view that was made last."""
    requests: Records = field(init=False)
    queues: IntArray = field(init=False)
    batch: IntArray = field(init=False)
    totals: Records = field(init=False)
    gaps: IntArray = field(init=False)
    scheduling: tuple[Any, ...] = field(init=False)
    """Arrays that scheduling works on."""
    viewing: tuple[Any, ...] = field(init=False)
    """Those that a view is made from."""
    running: tuple[Any, ...] = field(init=False)
    """Those that the rest of a step works on."""
    max_draft: int = field(init=False)
    draft_before_emit: bool = field(init=False)
    parallel_drafter: bool = field(init=False)
    batch_drafter: bool = field(init=False)
    first_pass_every_step: bool = field(init=False)

    def __post_init__(self) -> None:
        engine, texts = self.engine, self.texts
        places = int(engine["max_num_seqs"][0])
        self.requests = np.zeros(places, REQUEST)
        self.queues = np.zeros((3, places), np.int64)
        self.queues[FREE_ROWS] = np.arange(places)
        self.batch = np.zeros((2, places), np.int64)
        self.totals = np.zeros(1 + MARKS, TOTALS)
        self.gaps = np.zeros(GAP_BINS, np.int64)
        engine["free_rows"], engine["free_blocks"] = places, engine["num_blocks"]
        engine["closed_loop"] = self.concurrency is not None
        engine["sent"] = engine["first_measured"]
        self.scheduling = (engine, self.requests, self.queues, self.offered, texts.classes, self.batch)
        self.viewing = (engine, self.requests, self.queues, self.offered, self.batch)
        self.running = (
            engine, self.totals, self.times.record, self.times.curve, self.times.padding, self.gaps, self.requests,
            self.queues, self.offered, texts.classes, texts.rates, texts.lines, texts.values, self.batch,
        )  # fmt: skip
        for name in ("draft_before_emit", "parallel_drafter", "batch_drafter", "first_pass_every_step"):
            setattr(self, name, bool(engine[name][0]))
        self.max_draft = int(engine["max_draft"][0])

    def begin_measuring(self, now: float) -> bool:
        """Make the requests that are measured known, as of now; False where that was done.

        What was counted of the warm-up is forgotten.
        """
        engine, warmup = self.engine, int(self.engine["first_measured"][0])
        measured = self.offered[warmup:]
        if engine["sent"][0] > warmup or (warmup and engine["head"][0] < warmup) or not len(measured):
            return False
        measured["sent"] += now
        engine["origin"], engine["sent"] = now, len(self.offered)
        if self.concurrency is not None:
            engine["sent"] = warmup + min(self.concurrency, len(measured))
            measured["sent"][self.concurrency :] = math.inf
        self.totals[:] = np.zeros(1, TOTALS)
        engine["preemptions"] = engine["marks"] = engine["mark_seconds"] = engine["next_mark"] = 0
        return True
