"""Plays the cells of one drafter, whose servers stay up together; only one of them is under load at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from turbospec_bench.configuration import Cell
from turbospec_bench.contender import Contender, Run
from turbospec_bench.matrix import Entry
from turbospec_bench.policy_names import OFF, fixed_length
from turbospec_bench.rounds import play_round
from turbospec_bench.vllm.contender import Bench, VllmContender
from turbospec_bench.vllm.fleet import Fleet
from turbospec_bench.vllm.launch import Launches, server_name
from turbospec_bench.vllm.loads import LoadSource, VllmLoad
from turbospec_bench.vllm.matrix import BATCH_TABLE, with_tuning
from turbospec_bench.vllm.speculation import Lengths
from turbospec_bench.vllm.tuning import tune

UNCOUNTED_ROUNDS = 2
"""Played first in every cell: they warm the servers up, and the table is tuned on them."""

OnRun = Callable[[Cell, Contender[VllmLoad]], None]


def runs_of(entries: Sequence[Entry], rounds: int) -> int:
    """Runs of a cell, the uncounted ones too."""
    return len(with_tuning(entries)) * UNCOUNTED_ROUNDS + len(entries) * rounds


@dataclass(frozen=True, slots=True)
class VllmSession:
    """What all drafters of a benchmark share."""

    fleet: Fleet
    launches: Launches
    bench: Bench
    source: LoadSource
    seed: int

    def warm_up(
        self, cells: Sequence[Cell], entries: Sequence[Entry], lengths: Lengths | None, on_run: OnRun
    ) -> Lengths | None:
        """Start the servers of a drafter and play the uncounted rounds of its cells.

        Args:
            cells: of one drafter.
            lengths: the table of `vllm-table` if it was tuned before.

        Returns:
            The table of `vllm-table`; None where it does not compete.

        Raises:
            UserError: a server or a run failed.
        """
        drafter = cells[0].drafter
        tabled = [entry for entry in entries if entry.policy == BATCH_TABLE]
        others = [entry for entry in (entries if lengths else with_tuning(entries)) if entry not in tabled]
        self.fleet.stop_all_but([OFF])
        self.fleet.start([self.launches.of(drafter, entry) for entry in others])
        self.bench.client.bind(self.fleet.free_cores)
        speeds: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for cell in cells:
            for runs in self._play(cell, others, range(UNCOUNTED_ROUNDS), on_run):
                for entry, run in zip(others, runs, strict=True):
                    if cell.concurrency is not None and (length := fixed_length(entry.policy)) is not None:
                        speeds[cell.concurrency][length].append(run.figures["output_throughput"])
        if tabled:
            lengths = lengths or tune(speeds)
            needed = [self.launches.of(drafter, entry, lengths) for entry in entries]
            self.fleet.stop_all_but([launch.name for launch in needed])
            self.fleet.start(needed)
            for cell in cells:
                for _ in self._play(cell, tabled, range(UNCOUNTED_ROUNDS), on_run):
                    pass
        return lengths

    def play(self, cell: Cell, entries: Sequence[Entry], rounds: int, on_run: OnRun) -> Iterator[list[Run]]:
        """Yield the runs of each counted round, in the order of the entries, whose servers are up."""
        return self._play(cell, entries, range(UNCOUNTED_ROUNDS, UNCOUNTED_ROUNDS + rounds), on_run)

    def _play(self, cell: Cell, entries: Sequence[Entry], numbers: Sequence[int], on_run: OnRun) -> Iterator[list[Run]]:
        contenders = [
            VllmContender(entry, self.fleet[server_name(cell.drafter, entry)], self.bench) for entry in entries
        ]
        for number in numbers:
            load = self.source.draw(cell, number)
            yield play_round(contenders, load, (self.seed, number), lambda contender: on_run(cell, contender))
