"""Many runs: every scenario under every policy, at every rate, with every seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from turbospec_sim.backends import Backend, workers
from turbospec_sim.finished import FinishedRuns, Row, rows_of
from turbospec_sim.fixed_plans import fixed_plans
from turbospec_sim.replications import figure
from turbospec_sim.run import BEST_STATIC, ORACLE, Run, simulate
from turbospec_sim.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs of all combinations of scenarios, policies, rates and seeds."""

    scenarios: Sequence[tuple[str, Scenario]]
    """Names and scenarios."""
    policies: Sequence[str] = ()
    """Empty: each scenario's own."""
    rates: Sequence[float] = ()
    """Empty: each scenario's own."""
    seeds: int = 1
    """Seeds of each run, counting up from the scenario's."""

    def runs(self) -> list[Run]:
        """All runs; `best_static` is one for each of its fixed plans."""
        runs: list[Run] = []
        for name, scenario in self.scenarios:
            for rate in scenario.rates_of_runs(self.rates):
                for seed in range(scenario.seed, scenario.seed + self.seeds):
                    for policy in self.policies or (scenario.policy,):
                        tried = fixed_plans(scenario) if policy == BEST_STATIC else (None,)
                        runs += [Run(name, scenario, policy, rate, seed, fixed) for fixed in tried]
        return runs


def run_all(
    runs: Sequence[Run],
    jobs: int | None = None,
    backend: Backend = "local",
    finished: FinishedRuns | None = None,
) -> Iterator[Row]:
    """Rows of the runs, in their order, yielded as they are finished.

    Args:
        runs: what to simulate.
        jobs: processes; None for one, or for all CPUs of a cluster.
        backend: this machine or a Ray cluster.
        finished: runs that are not simulated again; the others are added to it, each as soon as it is finished.

    Raises:
        UserError: a run's policy or files cannot be read, or the backend cannot be reached.
    """
    return rows_of(simulate, runs, workers(backend, jobs), finished)


def with_regret(rows: Sequence[Row]) -> list[Row]:
    """The rows with the best fixed plans for `best_static`, and with every policy's regret.

    Regret is 1 - goodput / goodput of a yardstick (`oracle`, `best_static`) in the same scenario at the same rate with
    the same seed, where goodput is the output tokens/s of requests within the SLO. It is below 0 where the policy did
    better, and None where the yardstick was not run.
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


def _with_best_static(rows: list[Row]) -> list[Row]:
    """One row for all that `best_static` tried: that of the highest goodput, and among equals of the lowest E2E
    latency."""
    tried = [row for row in rows if row["policy"] == BEST_STATIC]
    if not tried:
        return rows
    best = max(tried, key=lambda row: (row["token_goodput"], -figure(row, "mean_e2el_ms")))
    best["wall_seconds"] = sum(row["wall_seconds"] for row in tried)
    return [row for row in rows if row["policy"] != BEST_STATIC or row is best]


def _regret(goodput: float, best: float | None) -> float | None:
    if best is None:
        return None
    return 1.0 - goodput / best if best > 0.0 else 0.0
