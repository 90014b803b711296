"""What a benchmark will cost, as far as it is known before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turbospec.errors import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.results import Results
from turbospec_bench.texts import Shape
from turbospec_bench.variant import Variant

MAX_REQUESTS = 10**6
"""Of a benchmark; the whole matrix of the embedded engine serves about 50,000."""
MAX_SECONDS = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Work that is left."""

    configurations: int
    runs: int
    requests: int
    seconds: float
    """At least; 0 where nothing is known."""

    @classmethod
    def of(
        cls,
        plan: Sequence[tuple[Configuration, Sequence[Variant]]],
        rounds: int,
        resumed: Results | None,
        runs_of: Callable[[Sequence[Variant], int], int],
        shape_of: Callable[[Configuration], Shape],
    ) -> Cost:
        """The cost of a plan without what is in the results of an interrupted run.

        Arrivals at a rate take their time. Runs at a concurrency take as long as those of the rounds that are finished.

        Args:
            plan: configurations, and what each compares.
            rounds: counted rounds of each configuration.
            resumed: results of the interrupted run, if any.
            runs_of: runs of a configuration, uncounted ones included, by its variants and counted rounds.
            shape_of: the size of a configuration's runs.

        Raises:
            UserError: the results cannot be resumed with this plan.
        """
        configurations = runs = requests = 0
        seconds = 0.0
        for configuration, variants in plan:
            missing: Sequence[int] = range(1, rounds + 1)
            durations: list[float] = []
            if resumed is not None:
                missing = resumed.missing_rounds(configuration, variants, rounds)
                finished = resumed.rounds_of(configuration, variants)
                durations = [run.figures.get("duration", 0.0) for round_runs in finished for run in round_runs]
            if not missing:
                continue
            own = runs_of(variants, len(missing))
            configurations, runs = configurations + 1, runs + own
            requests += own * (shape := shape_of(configuration)).requests
            if configuration.request_rate is not None:
                seconds += own * shape.requests / configuration.request_rate
            elif durations:
                seconds += own * sum(durations) / len(durations)
        return cls(configurations, runs, requests, seconds)

    def check(self) -> None:
        """Refuse what nobody waits for.

        Raises:
            UserError: it is too much.
        """
        if self.requests > MAX_REQUESTS or self.seconds > MAX_SECONDS:
            raise UserError(
                f"this benchmark has {self.line()}, which is too much; lower --rounds or --concurrency, raise "
                "--request-rate, or select fewer configurations"
            )

    def line(self) -> str:
        """The cost in words."""
        known = f", at least {max(1, round(self.seconds / 60))} min" if self.seconds else ""
        counted = "1 configuration" if self.configurations == 1 else f"{self.configurations} configurations"
        return f"{counted}, {self.runs} runs, {self.requests} requests{known}"
