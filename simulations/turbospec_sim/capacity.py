"""Capacity: the highest request rate at which a server meets its SLO, found by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from turbospec.errors import UserError
from turbospec_sim import fixed_plans
from turbospec_sim.finished import FinishedRuns, Row, rows_of
from turbospec_sim.processes import LocalProcesses
from turbospec_sim.ratio import Ratio
from turbospec_sim.run import Run, simulate, too_large
from turbospec_sim.scenario import Slo
from turbospec_sim.workload.offered import offered_requests

TOLERANCE = 0.01
"""Relative width at which bisection ends."""
FINEST = 1e-6
"""Least tolerance; below, floating point ends the progress of the search."""
LOWEST, HIGHEST = 1e-3, 1e5
"""Range of the search, requests/s; a capacity below it counts as 0."""
FIRST_GUESS = 1.0
RUNS = 16
"""Of a search, about."""
FIELDS = ("scenario", "policy", "request_rate", "seed", *fixed_plans.FIELDS, "capacity")
"""Of a search that is finished; `request_rate` is where it began."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of one run, over seeds."""

    rates: tuple[float, ...]
    """Requests/s, one for each seed; 0 where no rate meets the SLO."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.rates))

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN for a single seed."""
        number = len(self.rates)
        return float(np.std(self.rates, ddof=1)) / math.sqrt(number) if number > 1 else math.nan

    def over(self, other: Capacity) -> Ratio | None:
        """This capacity over another one with the same seeds; None where one of them is 0."""
        if min(*self.rates, *other.rates) <= 0.0:
            return None
        return Ratio.of(np.log(self.rates) - np.log(other.rates))


def capacity(run: Run, *, tolerance: float = TOLERANCE) -> float:
    """Highest rate at which one run meets its scenario's SLO.

    A seed's requests and their acceptance are the same at every rate and only arrive closer together. The SLO is
    therefore missed above one rate and met below it, nearly always, and bisection finds that rate. This does not hold
    where the rate varies over a period: the faster the requests arrive, the less of the period they cover, and they may
    all come before its peak. Such scenarios are refused.

    Args:
        run: what is simulated; the search begins at its rate, where it has one.
        tolerance: relative distance of the result to the lowest rate that was found to miss the SLO, at most; at
            least `FINEST`.

    Returns:
        Requests/s; 0 where even `LOWEST` misses the SLO or a request does not fit the KV cache, `HIGHEST` where no rate
        up to it misses it.

    Raises:
        UserError: the scenario has no SLO, its arrivals have no rate or one that varies, or the tolerance is too fine.
    """
    if not tolerance >= FINEST:  # NaN
        raise UserError(f"tolerance {tolerance:g} is too fine; use at least {FINEST:g} (of the rate)")
    check(run)
    if refused(run) is not None:
        return 0.0
    low, high = _bracket(run, min(max(run.rate or FIRST_GUESS, LOWEST), HIGHEST))
    while low > 0.0 and low * (1.0 + tolerance) < high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _meets_slo(run, middle) else (low, middle)
    return low


def refused(run: Run) -> str | None:
    """Why a run misses its SLO at any rate: some of its requests are larger than the KV cache; None where none is."""
    return too_large(run.scenario, offered_requests(run.scenario.workload, FIRST_GUESS, run.seed))[0]


def check(run: Run) -> None:
    """Check that a run has a capacity.

    Raises:
        UserError: the scenario has no SLO, or its arrivals have no rate or one that varies.
    """
    if run.scenario.slo is None or run.scenario.slo == Slo():
        raise UserError(
            f"scenario `{run.name}` has no `slo` with a limit, which defines its capacity; add `p99_ttft_ms` or "
            "`p99_tpot_ms` to `slo`"
        )
    if not run.scenario.workload.has_rates:
        raise UserError(f"scenario `{run.name}` has no request rate; capacity needs Poisson or gamma arrivals")
    if run.scenario.workload.period_seconds is not None:
        raise UserError(
            f"scenario `{run.name}` has `{run.scenario.workload.arrivals.process}` arrivals: the same requests at a "
            "higher rate cover less of the period and may miss its peak; use poisson arrivals "
            """(--set 'workload.arrivals={"process": "poisson"}')"""
        )


def capacities(
    runs: Sequence[Run],
    *,
    seeds: int = 1,
    jobs: int = 1,
    tolerance: float = TOLERANCE,
    done: Callable[[], None] = lambda: None,
    finished: FinishedRuns | None = None,
) -> list[Capacity]:
    """Capacities of several runs, in their order.

    Runs with the same seed share their requests, so that the ratio of two capacities is less noisy than either.

    Args:
        runs: what is simulated; seeds count up from each run's own.
        seeds: searches of each run.
        jobs: processes.
        tolerance: as in `capacity`.
        done: called after each search.
        finished: searches that are not made again, with the fields `FIELDS`; the others are added.
    """
    seeded = [replace(run, seed=run.seed + seed) for run in runs for seed in range(seeds)]
    found: list[float] = []
    for row in rows_of(partial(_row, tolerance=tolerance), seeded, LocalProcesses(jobs), finished):
        found.append(row["capacity"])
        done()
    return [Capacity(tuple(found[place : place + seeds])) for place in range(0, len(found), seeds)]


def _row(run: Run, tolerance: float) -> Row:
    """The result of one search, as `FinishedRuns` keeps it."""
    return {
        "scenario": run.name,
        "policy": run.policy,
        "request_rate": run.rate,
        "seed": run.seed,
        **fixed_plans.chosen(run.fixed),
        "capacity": capacity(run, tolerance=tolerance),
    }


def _bracket(run: Run, guess: float) -> tuple[float, float]:
    """A rate that meets the SLO, and a higher one, at most double, that does not.

    (0, `LOWEST`) where `LOWEST` misses it, (`HIGHEST`, `HIGHEST`) where `HIGHEST` meets it.
    """
    low = high = guess
    if _meets_slo(run, guess):
        while low < HIGHEST:
            high = min(2.0 * low, HIGHEST)
            if not _meets_slo(run, high):
                break
            low = high
        return low, high
    while high > LOWEST:
        low = max(high / 2.0, LOWEST)
        if _meets_slo(run, low):
            return low, high
        high = low
    return 0.0, high


def _meets_slo(run: Run, rate: float) -> bool:
    return bool(simulate(replace(run, rate=rate))["slo_met"])
