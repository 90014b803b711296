"""Plays the rounds of each configuration in the embedded engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from turbospec.models.profile import Profile
from turbospec.policy import find_policy, load_controller, read_policy
from turbospec.policy.static import OffConfig, StaticConfig
from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Contender, Run
from turbospec_bench.embedded.contender import EngineContender
from turbospec_bench.embedded.pairs import Pairs
from turbospec_bench.embedded.transformers_contender import TransformersContender
from turbospec_bench.embedded.workloads import Load, RequestSource
from turbospec_bench.matrix import UNCOUNTED_ROUNDS
from turbospec_bench.rounds import DisturbanceCheck, OnRun, play_rounds
from turbospec_bench.trace_folder import TraceFolder, write_trace
from turbospec_bench.variant import Variant


@dataclass(frozen=True, slots=True)
class Session:
    """What all configurations of a benchmark share."""

    pairs: Pairs
    source: RequestSource
    profile_of: Callable[[Configuration], Profile]
    """Measured step times, for the policies that may predict; measuring can take a while."""
    seed: int
    """Of the policies that draw at random, and of the order within rounds."""
    traces: TraceFolder | None = None
    """Where the steps of counted runs go, and the step times of their pairs."""
    check: DisturbanceCheck | None = None

    def play(
        self, configuration: Configuration, variants: Sequence[Variant], numbers: Sequence[int], on_run: OnRun
    ) -> Iterator[list[Run]]:
        """Yield the runs of each counted round, in the order of the variants.

        Engines and controllers live for the whole configuration.

        Args:
            numbers: of the counted rounds, from 1.

        Raises:
            UserError: a trace cannot be written.
        """
        if self.traces is not None:
            self.profile_of(configuration).save(self.traces.profile(configuration.drafter))
        contenders = [self._contender(configuration, variant) for variant in variants]

        def play(numbers: Sequence[int], check: DisturbanceCheck | None) -> Iterator[list[Run]]:
            draw = partial(self.source.draw, configuration)
            seeds = (self.seed, configuration.checksum)
            return play_rounds(contenders, draw, numbers, seeds, partial(on_run, configuration), check)

        for _ in play(range(UNCOUNTED_ROUNDS), None):
            pass
        counted = play([UNCOUNTED_ROUNDS - 1 + number for number in numbers], self.check)
        for number, runs in zip(numbers, counted, strict=True):
            if self.traces is not None:
                _write(self.traces, configuration, variants, number, runs)
            yield runs

    def _contender(self, configuration: Configuration, variant: Variant) -> Contender[Load]:
        if variant.is_transformers:
            return TransformersContender(variant, self.pairs.hugging_face(configuration))
        assert variant.emit is not None, "only the embedded engine runs here"
        never_predicts = isinstance(read_policy(find_policy(variant.policy)), OffConfig | StaticConfig)
        profile = None if never_predicts else self.profile_of(configuration)
        controller = load_controller(variant.policy, profile=profile, seed=self.seed)
        return EngineContender(
            variant,
            self.pairs.engine_config(configuration, variant.emit),
            self.pairs.models(configuration),
            controller,
            traced=self.traces is not None,
        )


def _write(
    traces: TraceFolder, configuration: Configuration, variants: Sequence[Variant], number: int, runs: Sequence[Run]
) -> None:
    for variant, run in zip(variants, runs, strict=True):
        if variant.emit is not None:
            write_trace(traces.trace(configuration, variant.name, variant.emit, number), run.steps)
