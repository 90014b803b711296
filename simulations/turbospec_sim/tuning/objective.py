"""What a policy is worth beside another: ratios of a figure, run by run, on the same requests and texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turbospec.errors import UserError
from turbospec.files.suggestions import nearest
from turbospec.interface import FloatArray
from turbospec.policy import PolicyConfig
from turbospec_sim.run import Run
from turbospec_sim.scenario import Scenario
from turbospec_sim.sweep import Row, run_all

FIGURES = {
    "goodput": "token_goodput",
    "throughput": "output_throughput",
} | {
    field: field
    for name in ("ttft", "tpot", "itl", "e2el")
    for field in (f"{part}_{name}_ms" for part in ("mean", "median", "p95", "p99"))
}
"""Fields of a row by the objectives' names. Times are to be low, the others high."""
LARGEST_LOG_RATIO = math.log(100.0)
"""Beyond it one figure is as good as nothing beside the other."""


def check_objective(name: str) -> None:
    """Raises:
    UserError: there is no such objective.
    """
    if name not in FIGURES:
        raise UserError(f"--objective {name}: {nearest(name, FIGURES)}")


@dataclass(frozen=True, slots=True)
class Trials:
    """Runs policies on the same scenarios, rates and seeds."""

    scenarios: Sequence[tuple[str, Scenario]]
    """Names and scenarios."""
    rates: Sequence[float]
    """None: each scenario's own."""
    objective: str
    seeds: int
    """For each scenario; they count up from its own."""
    skipped_seeds: int = 0
    """Seeds from the scenario's own on that are left to others."""
    jobs: int = 1

    @property
    def runs(self) -> int:
        """Runs of one policy."""
        return self.seeds * len(self._places())

    def figures(self, configs: Sequence[PolicyConfig], done: Callable[[], None] = lambda: None) -> FloatArray:
        """(configs, seeds, scenarios and rates) the objective's figure of every run; `done` is called after each."""
        places = self._places()
        runs = [
            Run(name, scenario, "tuned", rate, scenario.seed + self.skipped_seeds + seed, settings=config)
            for config in configs
            for seed in range(self.seeds)
            for name, scenario, rate in places
        ]
        figures: list[float] = []
        for row in run_all(runs, self.jobs):
            figures.append(self._figure(row))
            done()
        return np.array(figures).reshape(len(configs), self.seeds, len(places))

    def log_ratios(self, figures: FloatArray, default: FloatArray) -> FloatArray:
        """(…, seeds) logarithms of the mean ratio of figures to the default policy's, above 0 where they are better."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(figures) - np.log(default)
        # Nothing served by either is alike; by one of them, as bad or good as it gets.
        ratios = np.where(figures == default, 0.0, ratios)
        if FIGURES[self.objective].endswith("_ms"):
            ratios = -ratios
            ratios = np.where(np.isnan(figures), -math.inf, np.where(np.isnan(default), math.inf, ratios))
            ratios = np.where(np.isnan(figures) & np.isnan(default), 0.0, ratios)
        return np.clip(ratios, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).mean(axis=-1)

    def _places(self) -> list[tuple[str, Scenario, float | None]]:
        return [
            (name, scenario, rate)
            for name, scenario in self.scenarios
            for rate in ((self.rates or scenario.rates) if scenario.workload.has_rates else (None,))
        ]

    def _figure(self, row: Row) -> float:
        return float(row[FIGURES[self.objective]])
