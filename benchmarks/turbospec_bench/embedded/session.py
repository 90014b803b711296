"""Sets a cell up and plays its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from turbospec.models.profile import Profile
from turbospec.policy import find_policy, load_controller, read_policy
from turbospec.policy.static import OffConfig, StaticConfig
from turbospec_bench.configuration import Cell
from turbospec_bench.contender import Contender, Run
from turbospec_bench.embedded.contender import EngineContender
from turbospec_bench.embedded.pairs import Pairs
from turbospec_bench.embedded.transformers_contender import TransformersContender
from turbospec_bench.embedded.workloads import Load, RequestSource
from turbospec_bench.matrix import Entry
from turbospec_bench.rounds import play_rounds
from turbospec_bench.trace_folder import TraceFolder, write_trace


@dataclass(frozen=True, slots=True)
class Session:
    """What all cells of a benchmark share."""

    pairs: Pairs
    source: RequestSource
    profile_of: Callable[[Cell], Profile]
    """Measured step times, for the policies that may predict; measuring can take a while."""
    seed: int
    """Of the policies that draw at random, and of the order within rounds."""
    traces: TraceFolder | None = None
    """Where the steps of counted runs go, and the step times of their pairs."""

    def play(
        self, cell: Cell, entries: Sequence[Entry], rounds: int, on_run: Callable[[Contender[Load]], None]
    ) -> Iterator[list[Run]]:
        """Yield the runs of each counted round, in the order of the entries. Engines and controllers are the cell's.

        Raises:
            UserError: a trace cannot be written.
        """
        if self.traces is not None:
            self.profile_of(cell).save(self.traces.profile(cell.drafter))
        contenders = [self._contender(cell, entry) for entry in entries]
        played = play_rounds(contenders, partial(self.source.draw, cell), rounds, self.seed, on_run)
        for number, runs in enumerate(played, start=1):
            if self.traces is not None:
                _write(self.traces, cell, entries, number, runs)
            yield runs

    def _contender(self, cell: Cell, entry: Entry) -> Contender[Load]:
        if entry.is_transformers:
            return TransformersContender(entry, self.pairs.hugging_face(cell))
        assert entry.emit is not None, "the engine is ours"
        never_predicts = isinstance(read_policy(find_policy(entry.policy)), OffConfig | StaticConfig)
        profile = None if never_predicts else self.profile_of(cell)
        controller = load_controller(entry.policy, profile=profile, seed=self.seed)
        return EngineContender(
            entry,
            self.pairs.config(cell, entry.emit),
            self.pairs.models(cell),
            controller,
            traced=self.traces is not None,
        )


def _write(traces: TraceFolder, cell: Cell, entries: Sequence[Entry], number: int, runs: Sequence[Run]) -> None:
    for entry, run in zip(entries, runs, strict=True):
        if entry.emit is not None:
            write_trace(traces.trace(cell, entry.name, entry.emit, number), run.steps)
