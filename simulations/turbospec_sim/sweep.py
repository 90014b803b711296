"""Many runs: every scenario under every policy, at every rate, with every seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from turbospec_sim.backends import Backend, workers
from turbospec_sim.run import BEST_STATIC, ORACLE, Run, simulate
from turbospec_sim.scenario import Scenario

CHUNKS_PER_JOB = 4
"""Parts that each worker's share is cut into: large enough to hide what sending takes, small enough to even out."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to run."""

    scenarios: Sequence[tuple[str, Scenario]]
    """Names and scenarios."""
    policies: Sequence[str] = ()
    """None: each scenario's own."""
    rates: Sequence[float] = ()
    """None: each scenario's own."""
    seeds: int = 1
    """Seeds of each run, counting up from the scenario's."""

    def runs(self) -> list[Run]:
        """All runs; `best_static` is one for each draft length that the engine allows."""
        runs: list[Run] = []
        for name, scenario in self.scenarios:
            rates = (self.rates or scenario.rates) if scenario.workload.has_rates else (None,)
            for rate in rates:
                for seed in range(scenario.seed, scenario.seed + self.seeds):
                    for policy in self.policies or (scenario.policy,):
                        tried = range(scenario.drafter.max_draft + 1) if policy == BEST_STATIC else (None,)
                        runs += [Run(name, scenario, policy, rate, seed, length) for length in tried]
        return runs


def run_all(runs: Sequence[Run], jobs: int | None = None, backend: Backend = "local") -> Iterator[Row]:
    """Rows of the runs, in their order, as they are finished.

    Args:
        runs: independent of one another.
        jobs: processes to run them in; None for one, or all CPUs of a cluster.
        backend: where these are.

    Raises:
        UserError: a run's policy or files cannot be read, or the backend cannot be reached.
    """
    hands = workers(backend, jobs)
    size = 1 if hands.count == 1 else -(-len(runs) // (CHUNKS_PER_JOB * hands.count))
    chunks = [runs[place : place + size] for place in range(0, len(runs), size)]
    for rows in hands.map(_simulate_all, chunks):
        yield from rows


def with_regret(rows: Sequence[Row]) -> list[Row]:
    """The rows with `best_static` chosen and with every policy's regret.

    Regret is the part of a yardstick's goodput, the output tokens a second of requests within the SLO, that a policy
    did not reach in the same scenario at the same rate with the same seed; below 0 where it did better. None where the
    yardstick was not run.
    """
    finished: list[Row] = []
    for _, group in groupby(rows, key=lambda row: (row["scenario"], row["request_rate"], row["seed"])):
        chosen = _with_best_static(list(group))
        goodput = {row["policy"]: row["token_goodput"] for row in chosen}
        for row in chosen:
            for yardstick in (ORACLE, BEST_STATIC):
                row[f"regret_vs_{yardstick}"] = _regret(row["token_goodput"], goodput.get(yardstick))
        finished += chosen
    return finished


def _simulate_all(runs: Sequence[Run]) -> list[Row]:
    return [simulate(run) for run in runs]


def _with_best_static(rows: list[Row]) -> list[Row]:
    """One row in place of all that `best_static` tried: that of the highest goodput, and of these the fastest."""
    tried = [row for row in rows if row["policy"] == BEST_STATIC]
    if not tried:
        return rows
    best = max(tried, key=lambda row: (row["token_goodput"], -row["mean_e2el_ms"]))
    best["wall_seconds"] = sum(row["wall_seconds"] for row in tried)
    return [row for row in rows if row["policy"] != BEST_STATIC or row is best]


def _regret(goodput: float, best: float | None) -> float | None:
    if best is None:
        return None
    return 1.0 - goodput / best if best > 0.0 else 0.0
