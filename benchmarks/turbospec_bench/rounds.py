"""Interleaved rounds: every contender serves the same load before any of them serves the next."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Contender, Run
from turbospec_bench.other_processes import DISTURBING_CORES, CpuWatch
from turbospec_bench.variant import Variant

LoadT = TypeVar("LoadT")

OnRun = Callable[[Configuration, Variant], None]
"""Called before every run."""

ORDER = 1
"""Ends the seed of a round's order. Without it, the order would draw the numbers of the round's requests."""
MAX_REPEATS = 2
"""Most repeats of disturbed rounds in a configuration."""


def _say_nothing(message: str) -> None:
    pass


@dataclass(slots=True)
class DisturbanceCheck:
    """How rounds that other processes disturb are noticed, and how often they are repeated."""

    spare_cores: float = 0.0
    """Cores that the benchmark leaves to others; what they use beyond these disturbs a run."""
    repeats: int = MAX_REPEATS
    """Most repeats of disturbed rounds in each configuration."""
    say: Callable[[str], None] = _say_nothing
    """Called with one line for every disturbed round."""
    watch: CpuWatch = field(default_factory=CpuWatch)

    def disturbs(self, other_cores: float | None) -> bool:
        return other_cores is not None and other_cores > self.spare_cores + DISTURBING_CORES


def play_rounds(
    contenders: Sequence[Contender[LoadT]],
    draw: Callable[[int], LoadT],
    numbers: Sequence[int],
    seeds: tuple[int, int],
    on_run: Callable[[Variant], None] = lambda _: None,
    check: DisturbanceCheck | None = None,
) -> Iterator[list[Run]]:
    """Yield the runs of each round, in the contenders' order.

    A round that other processes disturbed is repeated with the same load; the least disturbed one counts.

    Args:
        draw: the load of a round.
        numbers: of the rounds.
        seeds: of the benchmark and of its configuration; with the round's number they draw the order in which the
            contenders run.
        on_run: called before every run.
        check: notices disturbed rounds; None to count every round as it is.
    """
    repeats = check.repeats if check is not None else 0
    with _frozen():
        for number in numbers:
            load = draw(number)
            order = (*seeds, number, ORDER)
            runs = _play_round(contenders, load, order, on_run, check)
            while check is not None and any(run.disturbed for run in runs):
                again = "measured again" if repeats else "marked as disturbed"
                check.say(f"other processes used {most_other_cores(runs):.1f} cores during a round; it is {again}")
                if not repeats:
                    break
                repeats -= 1
                repeated = _play_round(contenders, load, order, on_run, check)
                runs = min(runs, repeated, key=most_other_cores)
            yield runs


def most_other_cores(runs: Sequence[Run]) -> float:
    """The largest number of cores that other processes used during one of the runs."""
    return max((run.other_cores or 0.0 for run in runs), default=0.0)


def _play_round(
    contenders: Sequence[Contender[LoadT]],
    load: LoadT,
    order: tuple[int, ...],
    on_run: Callable[[Variant], None],
    check: DisturbanceCheck | None,
) -> list[Run]:
    """One round's runs in the contenders' order; they run in an order drawn by the seeds in `order`."""
    runs: dict[int, Run] = {}
    if check is not None:
        check.watch.restart()
    for place in np.random.default_rng(order).permutation(len(contenders)):
        on_run(contenders[place].variant)
        with _no_collection():
            run = contenders[place].serve(load)
        if check is not None:
            # After a short run the window goes on: a disturbance is then found with the next run of the round.
            others = check.watch.other_cores()
            run = replace(run, other_cores=others, disturbed=check.disturbs(others))
        runs[int(place)] = run
    return [runs[place] for place in range(len(contenders))]


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep what exists now, models above all, out of every garbage collection."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage before a run and never during it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
