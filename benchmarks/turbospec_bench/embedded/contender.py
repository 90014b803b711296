"""A policy in the embedded engine, with a client that sends requests at the load's arrival times."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from turbospec.controller import Controller
from turbospec.interface import IntArray
from turbospec_bench.contender import Run, client_figures
from turbospec_bench.embedded.workloads import Load
from turbospec_bench.metrics import RequestRecord
from turbospec_bench.recorder import StepLog, StepTotals, Timeline
from turbospec_bench.variant import Variant
from turbospec_engine import Engine, EngineConfig, Models
from turbospec_engine.lookup import Found, build_lookup
from turbospec_engine.request import Request


class EngineContender:
    """One engine and one controller, which live through all runs of a configuration as a server does.

    Args:
        traced: whether a run keeps its steps.
    """

    def __init__(
        self, variant: Variant, config: EngineConfig, models: Models, controller: Controller, *, traced: bool = False
    ) -> None:
        self.variant = variant
        self._totals = StepTotals()
        self._timeline = Timeline()
        self._log = StepLog()
        controller.listeners += [self._totals, self._timeline, *([self._log] if traced else [])]
        self._lookup = None if config.lookup is None else _LookupOfARun(config.lookup)
        self._engine = Engine(config, controller, models=models, lookup=self._lookup)

    def serve(self, load: Load) -> Run:
        if self._lookup is not None:
            self._lookup.forget()
        self._totals.reset()
        self._timeline.reset()
        self._log.reset()
        began = time.perf_counter()
        records = drive(self._engine, load)
        duration = max(record.output_times[-1] for record in records if record.output_times) - began
        figures = client_figures(records, duration) | self._totals.figures()
        return Run(figures, self._timeline.document(), self._log.steps)


class _LookupOfARun:
    """A look-up that a run begins without any answers: a prompt may be drawn again in a later round, and a round may be
    repeated."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.forget()

    def forget(self) -> None:
        """Begin anew; no request is unfinished."""
        self._own = build_lookup(self._name)

    def find(
        self, requests: Sequence[Request], limits: IntArray, drafts: Sequence[Sequence[int]] | None = None
    ) -> Found:
        return self._own.find(requests, limits, drafts)

    def finish(self, request: Request) -> None:
        self._own.finish(request)


def drive(engine: Engine, load: Load) -> list[RequestRecord]:
    """Serve a whole load: at most `max_in_flight` requests at once, none before its arrival time."""
    began = time.perf_counter()
    unsent = deque(zip(load.requests, load.arrivals or (0.0,) * len(load.requests), strict=True))
    records: list[RequestRecord] = []
    in_flight: dict[str, RequestRecord] = {}
    while unsent or in_flight:
        if not in_flight:
            time.sleep(max(0.0, began + unsent[0][1] - time.perf_counter()))
        while unsent and began + unsent[0][1] <= time.perf_counter() and len(in_flight) != load.max_in_flight:
            request, arrival = unsent.popleft()
            sent = time.perf_counter() if load.arrivals is None else began + arrival
            records.append(RequestRecord(sent, len(request.prompt)))
            in_flight[engine.add_request(request.prompt, request.params)] = records[-1]
        for output in engine.step():
            record = in_flight[output.request_id]
            if output.new_token_ids:
                record.receive(output.emitted_at, output.new_token_ids)
            if output.finished:
                record.failed = output.finish_reason == "abort"
                del in_flight[output.request_id]
    return records
