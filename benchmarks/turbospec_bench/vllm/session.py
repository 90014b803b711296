"""Plays the configurations of each drafter, whose servers stay up together; one server at a time is under load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.policy_names import OFF, fixed_length
from turbospec_bench.rounds import DisturbanceCheck, OnRun, play_rounds
from turbospec_bench.variant import Variant
from turbospec_bench.vllm.contender import Bench, VllmContender
from turbospec_bench.vllm.fleet import Fleet
from turbospec_bench.vllm.launch import Launches, server_name
from turbospec_bench.vllm.loads import LoadSource
from turbospec_bench.vllm.matrix import BATCH_TABLE, with_tuning
from turbospec_bench.vllm.speculation import Lengths
from turbospec_bench.vllm.tuning import tune

UNCOUNTED_ROUNDS = 3
"""Played first in every configuration: they warm the servers up."""
COLD_ROUNDS = 1
"""The first of them; vLLM's table is tuned on the others."""
UNBOUND_PROCESSES = 3
"""That are busy on the cores without workers: API server, engine core and client."""


def runs_of(variants: Sequence[Variant], rounds: int) -> int:
    """Runs of a configuration, the uncounted ones too."""
    return len(with_tuning(variants)) * UNCOUNTED_ROUNDS + len(variants) * rounds


@dataclass(frozen=True, slots=True)
class VllmSession:
    """What all drafters of a benchmark share."""

    fleet: Fleet
    launches: Launches
    bench: Bench
    source: LoadSource
    seed: int
    check: DisturbanceCheck | None = None

    def warm_up(
        self,
        configurations: Sequence[Configuration],
        variants: Sequence[Variant],
        lengths: Lengths | None,
        on_run: OnRun,
    ) -> Lengths | None:
        """Start the servers of a drafter and play the uncounted rounds of its configurations.

        Args:
            configurations: of one drafter.
            lengths: the table of `vllm-table` if it was tuned before.

        Returns:
            The table of `vllm-table`; None where it is not compared.

        Raises:
            UserError: a server or a run failed.
        """
        drafter = configurations[0].drafter
        tabled = [variant for variant in variants if variant.policy == BATCH_TABLE]
        others = [variant for variant in (variants if lengths else with_tuning(variants)) if variant not in tabled]
        self.fleet.stop_all_but([OFF])
        self.fleet.start([self.launches.of(drafter, variant) for variant in others])
        self.bench.client.bind(self.fleet.free_cores)
        if self.check is not None:
            self.check.spare_cores = max(0, len(self.fleet.free_cores) - UNBOUND_PROCESSES)
        speeds: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for configuration in configurations:
            for number, runs in enumerate(self._play(configuration, others, range(UNCOUNTED_ROUNDS), on_run)):
                if number < COLD_ROUNDS:
                    continue
                for variant, run in zip(others, runs, strict=True):
                    if configuration.concurrency is not None and (length := fixed_length(variant.policy)) is not None:
                        speeds[configuration.concurrency][length].append(run.figures["output_throughput"])
        if tabled:
            lengths = lengths or tune(speeds)
            needed = [self.launches.of(drafter, variant, lengths) for variant in variants]
            self.fleet.stop_all_but([launch.name for launch in needed])
            self.fleet.start(needed)
            for configuration in configurations:
                for _ in self._play(configuration, tabled, range(UNCOUNTED_ROUNDS), on_run):
                    pass
        return lengths

    def play(
        self, configuration: Configuration, variants: Sequence[Variant], numbers: Sequence[int], on_run: OnRun
    ) -> Iterator[list[Run]]:
        """Yield the runs of each counted round, in the order of the variants, whose servers are up.

        Args:
            numbers: of the counted rounds, from 1.
        """
        counted = [UNCOUNTED_ROUNDS - 1 + number for number in numbers]
        return self._play(configuration, variants, counted, on_run, self.check)

    def _play(
        self,
        configuration: Configuration,
        variants: Sequence[Variant],
        numbers: Sequence[int],
        on_run: OnRun,
        check: DisturbanceCheck | None = None,
    ) -> Iterator[list[Run]]:
        contenders = [
            VllmContender(variant, self.fleet[server_name(configuration.drafter, variant)], self.bench)
            for variant in variants
        ]
        draw = partial(self.source.draw, configuration)
        seeds = (self.seed, configuration.checksum)
        return play_rounds(contenders, draw, numbers, seeds, partial(on_run, configuration), check)
