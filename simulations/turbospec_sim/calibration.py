"""Fits unknown coefficients of scenarios to measured runs, jointly, and says how well the measurements know them.

Residuals are logarithms of simulated over measured figures, averaged over seeds. All points of a fit are simulated with
the same seeds (common random numbers), so that a small change of a coefficient shows above the noise. A figure counts
the less the more it varies from seed to seed, because what was measured is one run and not a mean: its weight is the
inverse of that variance and of `MODEL_ERROR`'s together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from turbospec.interface import FloatArray
from turbospec_sim.measurements import Measurement
from turbospec_sim.run import Run
from turbospec_sim.scenario import Scenario
from turbospec_sim.scenario_fields import number, upper_limit, with_numbers
from turbospec_sim.sweep import run_all

MODEL_ERROR = 0.05
"""Relative error that no coefficient mends: what a simulation leaves out."""
DIFFERENCE = 0.05
"""Step of the derivatives, in the logarithm of a coefficient: wide enough to pass over counts that jump."""
LARGEST_CHANGE = math.log(30.0)
"""How far from its start a coefficient may go, in its logarithm."""
ROUNDS = 2
"""Fits, each weighted by how figures vary where the last one ended."""
NO_FIGURE = 5.0
"""Logarithm that stands for a figure that a simulated run did not have, because nothing was served."""
OPEN = 0.5
"""Standard error of a combination of coefficients, in the logarithm, from which the data do not tell it."""
PART_OF = 0.3
"""Share of a combination from which a coefficient is named as part of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A measured run and the scenario that stands for it."""

    scenario: str
    measured: Measurement


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One unknown number, which may be the value of several fields."""

    name: str
    """What the user calls it."""
    fields: tuple[str, ...]
    scenarios: tuple[str, ...]
    start: float
    limit: float | None = None
    """What it cannot reach; None for no limit."""

    @classmethod
    def of(cls, name: str, fields: Sequence[str], scenarios: Mapping[str, Scenario]) -> Coefficient:
        """Raises:
        UserError: a scenario has no such field, or it is not a real number above 0.
        """
        starts = [number(scenario, field) for scenario in scenarios.values() for field in fields]
        limit = upper_limit(next(iter(scenarios.values())), fields[0])
        # At its limit a coefficient's logarithm is infinite, and no step leads away from there.
        start = starts[0] if limit is None else min(starts[0], 0.99 * limit)
        return cls(name, tuple(fields), tuple(scenarios), start, limit)

    def value(self, change: float) -> float:
        """The number at a change of its logarithm from the start; of its log-odds, where it has a limit."""
        if self.limit is None:
            return self.start * math.exp(change)
        odds = self.start / (self.limit - self.start) * math.exp(change)
        return self.limit * odds / (1.0 + odds)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was fitted."""

    coefficients: Sequence[Coefficient]
    scenarios: dict[str, Scenario]
    """With the fitted values."""
    changes: FloatArray
    """(n,) from the start, in the logarithm (log-odds)."""
    errors: FloatArray
    """(n,) standard errors of these; huge where the data say nothing."""
    unidentified: list[tuple[str, ...]]
    """Names of coefficients that the data do not tell, or do not tell from each other."""
    cells: list[tuple[Case, str]]
    """Measured runs and figures, one for each of:"""
    log_ratios: FloatArray
    """(seeds, figures) of simulated over measured, at the fitted values."""

    def interval(self, place: int) -> tuple[float, float]:
        """95 % interval of a coefficient."""
        reach = min(1.96 * float(self.errors[place]), 50.0)
        coefficient, change = self.coefficients[place], float(self.changes[place])
        return coefficient.value(change - reach), coefficient.value(change + reach)


class Simulations:
    """The runs of a fit, at any values of its coefficients.

    Args:
        scenarios: by name.
        cases: measured runs.
        coefficients: what varies.
        seeds: how many of each run.
        jobs: processes to run them in.
    """

    def __init__(
        self,
        scenarios: Mapping[str, Scenario],
        cases: Sequence[Case],
        coefficients: Sequence[Coefficient],
        seeds: int,
        jobs: int = 1,
    ) -> None:
        self._given, self._cases, self._coefficients = scenarios, cases, coefficients
        self._seeds, self._jobs = seeds, jobs
        self.cells = [(case, figure) for case in cases for figure in case.measured.figures]

    def scenarios(self, changes: FloatArray) -> dict[str, Scenario]:
        """The scenarios at (n,) changes of the coefficients."""
        values: dict[str, dict[str, float]] = {name: {} for name in self._given}
        for coefficient, change in zip(self._coefficients, changes, strict=True):
            for name in coefficient.scenarios:
                values[name] |= dict.fromkeys(coefficient.fields, coefficient.value(float(change)))
        return {name: with_numbers(scenario, values[name]) for name, scenario in self._given.items()}

    def log_ratios(self, points: Sequence[FloatArray]) -> FloatArray:
        """(points, seeds, figures) logarithms of simulated over measured figures."""
        runs: list[Run] = []
        for point in points:
            scenarios = self.scenarios(point)
            for case in self._cases:
                scenario, measured = scenarios[case.scenario], case.measured
                policy = measured.policy or scenario.policy
                seeds = range(scenario.seed, scenario.seed + self._seeds)
                runs += [Run(case.scenario, scenario, policy, measured.rate, seed) for seed in seeds]
        rows = run_all(runs, self._jobs)
        ratios = np.empty((len(points), self._seeds, len(self.cells)))
        for point in range(len(points)):
            place = 0
            for case in self._cases:
                figures = case.measured.figures
                for seed in range(self._seeds):
                    row = next(rows)
                    with np.errstate(divide="ignore", invalid="ignore"):
                        found = [np.log(row[name] / value) for name, value in figures.items()]
                    ratios[point, seed, place : place + len(figures)] = found
                place += len(figures)
        return np.where(np.isfinite(ratios), ratios, NO_FIGURE)


def calibrate(
    scenarios: Mapping[str, Scenario],
    cases: Sequence[Case],
    coefficients: Sequence[Coefficient],
    *,
    seeds: int = 4,
    jobs: int = 1,
    evaluations: int = 8,
    progress: Callable[[float], None] = lambda misfit: None,
) -> Calibration:
    """Fit coefficients to measurements by non-linear least squares.

    Args:
        scenarios: by name; their values are where the fit begins.
        cases: what was measured.
        coefficients: what is unknown.
        seeds: simulated runs of each measured one; a weight by variance needs two.
        jobs: processes to run them in.
        evaluations: most points that a round tries; 1: none but the start, whose intervals are found.
        progress: is told the root mean square of the logarithms after each point.
    """
    simulations = Simulations(scenarios, cases, coefficients, seeds, jobs)
    changes = np.zeros(len(coefficients))
    ratios = simulations.log_ratios([changes])[0]
    if not coefficients:
        return Calibration((), dict(scenarios), changes, changes, [], simulations.cells, ratios)
    jacobian, variance = np.zeros((len(simulations.cells), len(coefficients))), 1.0
    freedom = max(1, len(simulations.cells) - len(coefficients))
    for _ in range(ROUNDS if evaluations > 1 else 1):
        spread = ratios.std(axis=0, ddof=1) if seeds > 1 else np.zeros(len(simulations.cells))
        weights = 1.0 / np.hypot(spread, MODEL_ERROR)

        def residuals(point: FloatArray, weights: FloatArray = weights) -> FloatArray:
            means = simulations.log_ratios([point])[0].mean(axis=0)
            progress(float(np.sqrt(np.mean(means**2))))
            return means * weights

        def derivatives(point: FloatArray, weights: FloatArray = weights) -> FloatArray:
            points = [point, *(point + DIFFERENCE * axis for axis in np.eye(len(point)))]
            means = simulations.log_ratios(points).mean(axis=1)
            return ((means[1:] - means[0]) / DIFFERENCE * weights).T

        fit = least_squares(
            residuals,
            changes,
            derivatives,
            bounds=(-LARGEST_CHANGE, LARGEST_CHANGE),
            x_scale=0.3,
            xtol=1e-3,
            ftol=1e-3,
            max_nfev=evaluations,
        )
        changes, jacobian = fit.x, np.asarray(fit.jac)
        # Residuals that are larger than their weights foresee widen the errors; smaller ones may be so by chance.
        variance = max(1.0, 2.0 * float(fit.cost) / freedom)
        ratios = simulations.log_ratios([changes])[0]
    errors, unidentified = identified(jacobian, variance, [one.name for one in coefficients])
    return Calibration(
        coefficients, simulations.scenarios(changes), changes, errors, unidentified, simulations.cells, ratios
    )


def identified(jacobian: FloatArray, variance: float, names: Sequence[str]) -> tuple[FloatArray, list[tuple[str, ...]]]:
    """How well residuals tell what they were fitted by.

    The covariance of a least-squares estimate is variance · (JᵀJ)⁻¹; its axes are the right singular vectors of J, and
    its standard errors along them the inverses of the singular values (Bates, Watts: "Nonlinear Regression Analysis",
    1988).

    Args:
        jacobian: (m, n) of the weighted residuals.
        variance: of one weighted residual.
        names: n names of the coefficients.

    Returns:
        (n,) standard errors, and for each direction that the residuals do not tell the coefficients that make it up.
    """
    _, sizes, axes = np.linalg.svd(jacobian)
    sizes = np.concatenate([sizes, np.zeros(len(names) - len(sizes))])
    along = math.sqrt(variance) / np.maximum(sizes, 1e-12)
    errors = np.sqrt(((axes * along[:, None]) ** 2).sum(axis=0))
    unknown: list[tuple[str, ...]] = []
    for axis, error in zip(axes, along, strict=True):
        if error > OPEN:
            shares = sorted(zip(np.abs(axis).tolist(), names, strict=True), reverse=True)
            unknown.append(tuple(name for share, name in shares if share >= PART_OF))
    return errors, unknown
