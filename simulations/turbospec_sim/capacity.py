"""The highest rate at which a server stays within its objectives, found by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from turbospec.errors import UserError
from turbospec_sim.backends import LocalProcesses
from turbospec_sim.ratio import Ratio
from turbospec_sim.run import Run, simulate

TOLERANCE = 0.01
"""Where bisection ends, as a part of the rate."""
FINEST = 1e-6
"""Least tolerance; a search without one would not end."""
LOWEST, HIGHEST = 1e-3, 1e5
"""Requests a second between which a capacity is looked for; below the first it counts as 0."""
FIRST_GUESS = 1.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of one run, over seeds."""

    rates: tuple[float, ...]
    """Requests a second, one for each seed; 0 where no rate is within the objectives."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.rates))

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for a single seed."""
        number = len(self.rates)
        return float(np.std(self.rates, ddof=1)) / math.sqrt(number) if number > 1 else math.nan

    def over(self, other: Capacity) -> Ratio | None:
        """This capacity over another one with the same seeds; None where either server can take nothing."""
        if min(*self.rates, *other.rates) <= 0.0:
            return None
        return Ratio.of(np.log(self.rates) - np.log(other.rates))


def capacity(run: Run, *, tolerance: float = TOLERANCE) -> float:
    """Highest rate at which one run stays within its scenario's objectives.

    A seed's requests and texts are the same at every rate, and only come closer together, so that more load is hardly
    ever better and bisection finds the one place where the objectives begin to be missed.

    Args:
        run: what is simulated; its rate, where it has one, is where the search begins.
        tolerance: the result is at most this part below the lowest rate that was found to miss the objectives; at
            least `FINEST`.

    Returns:
        Requests a second; 0 where even `LOWEST` misses the objectives, `HIGHEST` where nothing up to it does.

    Raises:
        UserError: the scenario has no objectives, or its load does not go by a rate, or the tolerance is too fine.
    """
    if tolerance < FINEST:
        raise UserError(f"tolerance {tolerance:g} is too fine; give at least {FINEST:g}, as a part of the rate")
    if run.scenario.slo is None:
        raise UserError(f"scenario `{run.name}` has no `slo`; without objectives there is no capacity")
    if not run.scenario.workload.has_rates:
        raise UserError(f"scenario `{run.name}` does not go by rates; capacity needs Poisson or other open arrivals")
    low, high = _bracket(run, run.rate or FIRST_GUESS)
    while low >= LOWEST and high <= HIGHEST and high > low * (1.0 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _within(run, middle) else (low, middle)
    return min(low, HIGHEST) if low >= LOWEST else 0.0


def capacities(
    runs: Sequence[Run],
    *,
    seeds: int = 1,
    jobs: int = 1,
    tolerance: float = TOLERANCE,
    done: Callable[[], None] = lambda: None,
) -> list[Capacity]:
    """Capacities of several runs, in their order.

    Runs with the same seed share their requests, so that the ratio of two capacities is less noisy than either.

    Args:
        runs: what is simulated; seeds count up from each run's own.
        seeds: how many of each.
        jobs: processes to run them in.
        tolerance: as in `capacity`.
        done: is called after each run and seed.
    """
    seeded = [replace(run, seed=run.seed + seed) for run in runs for seed in range(seeds)]
    found: list[float] = []
    for rate in LocalProcesses(jobs).map(partial(capacity, tolerance=tolerance), seeded):
        found.append(rate)
        done()
    return [Capacity(tuple(found[place : place + seeds])) for place in range(0, len(found), seeds)]


def _bracket(run: Run, guess: float) -> tuple[float, float]:
    """A rate within the objectives and its double, which is not; out of bounds where there is none."""
    low = guess
    if _within(run, low):
        while low <= HIGHEST and _within(run, 2.0 * low):
            low *= 2.0
        return low, 2.0 * low
    while low >= LOWEST:
        low /= 2.0
        if _within(run, low):
            break
    return low, 2.0 * low


def _within(run: Run, rate: float) -> bool:
    return bool(simulate(replace(run, rate=rate))["slo_met"])
