"""The state of a simulated engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from turbospec.interface import IntArray
from turbospec_sim.acceptance import AcceptanceTables
from turbospec_sim.arrays import EngineArrays
from turbospec_sim.drafting import ALL_TOKENS
from turbospec_sim.emission import GAP_BINS
from turbospec_sim.records import FREE_SLOTS, REQUEST, TOTALS, Records
from turbospec_sim.step_time import StepTimes
from turbospec_sim.timeline import MAX_SNAPSHOTS


@dataclass(slots=True)
class EngineState:
    """The arrays of a run, and its engine's constants.

    Args:
        engine: (1,) `ENGINE` record with the engine's settings; its other fields are set here.
        offered: the requests of the run, warm-up first; see `workload.offered`.
        acceptance: the acceptance processes of the request classes.
        times: coefficients of the step times.
        concurrency: clients of a closed loop; None where requests arrive at given times.
        confidence_correlation: as in the scenario; None for a drafter without confidence.
        calls_gate, appends_lookup: as in the scenario.
    """

    engine: Records
    offered: Records
    acceptance: AcceptanceTables
    times: StepTimes
    concurrency: int | None = None
    confidence_correlation: float | None = None
    calls_gate: bool = False
    appends_lookup: bool = False
    all_of_drafter: IntArray = field(init=False)
    """(max_num_seqs,) the sources of a plan without any; its first n are those of n requests."""
    view_slots: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """(n,) batch slots of the requests in the last view."""
    requests: Records = field(init=False)
    totals: Records = field(init=False)
    gaps: IntArray = field(init=False)
    arrays: EngineArrays = field(init=False)
    max_draft: int = field(init=False)
    """Of the drafter or the look-up, whichever drafts more."""
    offers_lookup: bool = field(init=False)
    draft_before_emit: bool = field(init=False)
    parallel_drafter: bool = field(init=False)
    batch_drafter: bool = field(init=False)
    first_pass_every_step: bool = field(init=False)

    def __post_init__(self) -> None:
        engine = self.engine
        slots = int(engine["max_num_seqs"][0])
        self.requests = np.zeros(slots, REQUEST)
        self.requests["selected"] = ALL_TOKENS
        self.all_of_drafter = np.zeros(slots, np.int64)
        queues = np.zeros((3, slots), np.int64)
        queues[FREE_SLOTS] = np.arange(slots)
        self.totals = np.zeros(1 + MAX_SNAPSHOTS, TOTALS)
        self.gaps = np.zeros(GAP_BINS, np.int64)
        engine["free_slots"], engine["free_blocks"] = slots, engine["num_blocks"]
        self.offers_lookup = bool(engine["max_lookup"][0])
        engine["times"] = self.times.record
        if self.offers_lookup:
            engine["times"]["host_request"] += self.times.lookup_request
        engine["closed_loop"] = self.concurrency is not None
        engine["sent"] = engine["first_measured"]
        self.arrays = EngineArrays(
            engine=engine,
            requests=self.requests,
            queues=queues,
            batch=np.zeros((2, slots), np.int64),
            offered=self.offered,
            **self.acceptance._asdict(),
            curve=self.times.curve,
            padding=self.times.padding,
            graph_lengths=np.array(self.times.graph_lengths, np.int64),
            changes=self.times.changes,
            totals=self.totals,
            gaps=self.gaps,
        )
        for name in ("draft_before_emit", "parallel_drafter", "batch_drafter", "first_pass_every_step"):
            setattr(self, name, bool(engine[name][0]))
        self.max_draft = int(max(engine["max_draft"][0], engine["max_lookup"][0]))

    def begin_measuring(self, now: float) -> bool:
        """Let the clients send the measured requests from `now` on, and reset the totals.

        Returns:
            False, with nothing changed, where measuring has begun, the warm-up is not over, or nothing is measured.
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
        engine["preemptions"] = engine["snapshots"] = engine["snapshot_seconds"] = engine["next_snapshot"] = 0
        return True
