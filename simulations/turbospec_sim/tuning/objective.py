"""The objective of tuning: the ratio of a figure to that of the default policy, on the same requests and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from turbospec.errors import UserError
from turbospec.files.suggestions import nearest
from turbospec.interface import FloatArray
from turbospec.policy import PolicyConfig
from turbospec_sim.cost import Cost, sweep_cost
from turbospec_sim.finished import FinishedRuns, Row
from turbospec_sim.replications import figure
from turbospec_sim.run import Run
from turbospec_sim.scenario import Scenario
from turbospec_sim.sweep import run_all

FIGURES = {
    "goodput": "token_goodput",
    "throughput": "output_throughput",
} | {
    field: field
    for name in ("ttft", "tpot", "itl", "e2el")
    for field in (f"{part}_{name}_ms" for part in ("mean", "median", "p95", "p99"))
}
"""Fields of a row by the objectives' names. Times are minimised, the others maximised."""
TUNED = "tuned"
"""Name of the policy in the rows."""
LARGEST_LOG_RATIO = math.log(100.0)
"""Log ratios are clipped to this magnitude."""


def check_objective(name: str) -> None:
    """Raises:
    UserError: there is no such objective.
    """
    if name not in FIGURES:
        raise UserError(f"--objective {name}: {nearest(name, FIGURES)}")


@dataclass(frozen=True, slots=True)
class Trials:
    """Evaluates policies on the same scenarios, rates and seeds."""

    scenarios: Sequence[tuple[str, Scenario]]
    """Names and scenarios."""
    rates: Sequence[float]
    """Requests/s; empty: each scenario's own."""
    objective: str
    seeds: int
    """Seeds of each scenario, counting up from its own."""
    skipped_seeds: int = 0
    """Number of seeds to skip, from the scenario's own on, so that two objects share none."""
    jobs: int = 1
    finished: FinishedRuns | None = None
    """Runs that are not simulated again; the others are added."""
    rows: list[Row] = field(default_factory=list[Row])
    """Of all runs, in the order in which they were asked for."""

    @property
    def runs(self) -> int:
        """Runs of one policy."""
        return self.seeds * len(self._points())

    @property
    def cost(self) -> Cost:
        """Cost of one policy's runs."""
        return sweep_cost(self.scenarios, [TUNED], self.rates, self.seeds)

    def figures(self, configs: Sequence[PolicyConfig], done: Callable[[], None] = lambda: None) -> FloatArray:
        """(configs, seeds, scenarios × rates) the objective's figure of every run; `done` is called after each run."""
        points = self._points()
        runs = [
            Run(name, scenario, TUNED, rate, scenario.seed + self.skipped_seeds + seed, settings=config)
            for config in configs
            for seed in range(self.seeds)
            for name, scenario, rate in points
        ]
        figures: list[float] = []
        for row in run_all(runs, self.jobs, finished=self.finished):
            self.rows.append(row)
            figures.append(figure(row, FIGURES[self.objective]))
            done()
        return np.array(figures).reshape(len(configs), self.seeds, len(points))

    def log_ratios(self, figures: FloatArray, default: FloatArray) -> FloatArray:
        """(…, seeds) mean logarithms of the ratios to the default policy's figures, above 0 where they are better."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(figures) - np.log(default)
        # Two runs that served nothing are equal; where one served nothing, the ratio is the largest.
        ratios = np.where(figures == default, 0.0, ratios)
        if FIGURES[self.objective].endswith("_ms"):
            ratios = -ratios
            ratios = np.where(np.isnan(figures), -math.inf, np.where(np.isnan(default), math.inf, ratios))
            ratios = np.where(np.isnan(figures) & np.isnan(default), 0.0, ratios)
        return np.clip(ratios, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).mean(axis=-1)

    def _points(self) -> list[tuple[str, Scenario, float | None]]:
        return [
            (name, scenario, rate) for name, scenario in self.scenarios for rate in scenario.rates_of_runs(self.rates)
        ]
