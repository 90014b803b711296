"""Fits unknown coefficients of scenarios to measured runs, jointly, and estimates how well the data identify them.

A residual is the logarithm of a simulated over a measured figure, averaged over seeds. All points of a fit are
simulated with the same seeds (common random numbers), so that the effect of a small change of a coefficient exceeds the
noise. The figures of a run are taken as independent. They are not, and the intervals may be too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError
from scipy.optimize import least_squares
from scipy.special import stdtrit

from turbospec.errors import UserError
from turbospec.interface import FloatArray
from turbospec_sim.cost import Cost, run_cost
from turbospec_sim.finished import FinishedRuns
from turbospec_sim.measurements import Measurement
from turbospec_sim.replications import figure
from turbospec_sim.run import Run
from turbospec_sim.scenario import Scenario
from turbospec_sim.scenario_fields import number, upper_limit, with_numbers
from turbospec_sim.sweep import run_all

MODEL_ERROR = 0.05
"""Relative error of the simulation itself, which no coefficient can correct."""
DIFFERENCE = 0.05
"""Step of the numerical derivatives, in the logarithm of a coefficient; large, because some figures are counts."""
LARGEST_CHANGE = math.log(30.0)
"""Largest change of a coefficient from its start, in its logarithm."""
ROUNDS = 2
"""Fits; each takes its weights from the variances at the end of the one before."""
NO_FIGURE = 5.0
"""Log ratio of a figure that a simulated run lacks, because it served nothing."""
UNIDENTIFIED_ERROR = 0.5
"""Standard error, in the logarithm, from which a combination of coefficients counts as not identified."""
NAMED_SHARE = 0.3
"""Least weight in such a combination with which a coefficient is named."""


@dataclass(frozen=True, slots=True)
class Case:
    """A measured run and the scenario that simulates it."""

    scenario: str
    measured: Measurement


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One unknown number, the value of one or several fields."""

    name: str
    """As the user wrote it."""
    fields: tuple[str, ...]
    scenarios: tuple[str, ...]
    start: float
    """The geometric mean of the fields' values."""
    limit: float | None = None
    """Exclusive upper limit; None for none."""

    @classmethod
    def of(cls, name: str, fields: Sequence[str], scenarios: Mapping[str, Scenario]) -> Coefficient:
        """Raises:
        UserError: a scenario has no such field, or the field is not a real number above 0.
        """
        starts = [number(scenario, field) for scenario in scenarios.values() for field in fields]
        shared = math.exp(sum(map(math.log, starts)) / len(starts))
        limits = [upper_limit(scenario, field) for scenario in scenarios.values() for field in fields]
        limit = min((each for each in limits if each is not None), default=None)
        # At the limit the log-odds are infinite, and no step leads away from there.
        start = shared if limit is None else min(shared, 0.99 * limit)
        return cls(name, tuple(fields), tuple(scenarios), start, limit)

    def value(self, change: float) -> float:
        """The number after a change of its logarithm from the start (of its log-odds, where it has a limit)."""
        if self.limit is None:
            return self.start * math.exp(change)
        odds = self.start / (self.limit - self.start) * math.exp(change)
        return self.limit * odds / (1.0 + odds)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Result of a fit."""

    coefficients: Sequence[Coefficient]
    scenarios: dict[str, Scenario]
    """The scenarios with the fitted values."""
    changes: FloatArray
    """(n,) changes of the coefficients from their starts, in the logarithm (log-odds)."""
    errors: FloatArray
    """(n,) standard errors of the changes; huge where the data identify nothing."""
    unidentified: list[tuple[str, ...]]
    """Names of coefficients that the data do not identify, or do not tell apart."""
    figures: list[tuple[Case, str]]
    """The measured figures, each with its run."""
    log_ratios: FloatArray
    """(seeds, figures) log of simulated over measured, at the fitted values."""
    freedom: int = 1
    """Figures beyond the number of coefficients, at least 1."""
    converged: bool = True
    """Whether the fit ended because no change of the coefficients improved it any more."""

    @property
    def at_limit(self) -> list[str]:
        """Names of coefficients that changed as far as a fit may change them."""
        far = np.abs(self.changes) > 0.99 * LARGEST_CHANGE
        return [one.name for one, reached in zip(self.coefficients, far, strict=True) if reached]

    def interval(self, place: int) -> tuple[float, float]:
        """95 % interval of a coefficient by Student's t, as if all figures were independent."""
        reach = min(float(stdtrit(self.freedom, 0.975)) * float(self.errors[place]), 50.0)
        coefficient, change = self.coefficients[place], float(self.changes[place])
        return coefficient.value(change - reach), coefficient.value(change + reach)


class Simulations:
    """Simulates the runs of a fit at given values of its coefficients.

    Args:
        scenarios: by name.
        cases: measured runs.
        coefficients: the fitted ones.
        seeds: simulations of each run.
        jobs: processes.
        finished: runs that are not simulated again; the others are added.
    """

    def __init__(
        self,
        scenarios: Mapping[str, Scenario],
        cases: Sequence[Case],
        coefficients: Sequence[Coefficient],
        seeds: int,
        jobs: int = 1,
        finished: FinishedRuns | None = None,
    ) -> None:
        self._given, self._cases, self._coefficients = scenarios, cases, coefficients
        self._seeds, self._jobs, self._finished = seeds, jobs, finished
        self.figures = [(case, figure) for case in cases for figure in case.measured.figures]

    def scenarios(self, changes: FloatArray) -> dict[str, Scenario]:
        """The scenarios at (n,) changes of the coefficients.

        Raises:
            UserError: a scenario does not allow a value that the fit came to.
        """
        values: dict[str, dict[str, float]] = {name: {} for name in self._given}
        for coefficient, change in zip(self._coefficients, changes, strict=True):
            for name in coefficient.scenarios:
                values[name] |= dict.fromkeys(coefficient.fields, coefficient.value(float(change)))
        try:
            return {name: with_numbers(scenario, values[name]) for name, scenario in self._given.items()}
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = ".".join(map(str, problem["loc"]))
            raise UserError(
                f"--fit: the fit came to a value that the scenario does not allow ({field}: {problem['msg']}); start "
                "from other values, or leave the field out"
            ) from error

    def log_ratios(self, points: Sequence[FloatArray]) -> FloatArray:
        """(points, seeds, figures) log of simulated over measured figures."""
        runs: list[Run] = []
        for point in points:
            scenarios = self.scenarios(point)
            for case in self._cases:
                scenario, measured = scenarios[case.scenario], case.measured
                policy = measured.policy or scenario.policy
                seeds = range(scenario.seed, scenario.seed + self._seeds)
                runs += [Run(case.scenario, scenario, policy, measured.rate, seed) for seed in seeds]
        rows = iter([*run_all(runs, self._jobs, finished=self._finished)])
        ratios = np.empty((len(points), self._seeds, len(self.figures)))
        for point in range(len(points)):
            place = 0
            for case in self._cases:
                figures = case.measured.figures
                for seed in range(self._seeds):
                    row = next(rows)
                    with np.errstate(divide="ignore", invalid="ignore"):
                        found = [np.log(figure(row, name) / value) for name, value in figures.items()]
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
    finished: FinishedRuns | None = None,
) -> Calibration:
    """Fit coefficients to measurements by non-linear least squares.

    Args:
        scenarios: by name; the fit begins at their values.
        cases: the measured runs.
        coefficients: the unknowns.
        seeds: simulations of each measured run; weights by variance need at least two.
        jobs: processes.
        evaluations: most points that each of the two fits tries; 1: only the intervals at the start.
        progress: called after each point with the root mean square of the log ratios.
        finished: runs that are not simulated again; the others are added.
    """
    simulations = Simulations(scenarios, cases, coefficients, seeds, jobs, finished)
    changes = np.zeros(len(coefficients))
    ratios = simulations.log_ratios([changes])[0]
    if not coefficients:
        return Calibration((), dict(scenarios), changes, changes, [], simulations.figures, ratios)
    jacobian, variance = np.zeros((len(simulations.figures), len(coefficients))), 1.0
    converged = True
    freedom = max(1, len(simulations.figures) - len(coefficients))
    for _ in range(ROUNDS if evaluations > 1 else 1):
        weights = residual_weights(ratios)

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
        converged = evaluations == 1 or fit.status > 0  # with one evaluation only the intervals are wanted
        # Residuals above what their weights predict widen the errors; residuals below may be due to chance.
        variance = max(1.0, 2.0 * float(fit.cost) / freedom)
        ratios = simulations.log_ratios([changes])[0]
    errors, unidentified = identified(jacobian, variance, [one.name for one in coefficients])
    return Calibration(
        coefficients,
        simulations.scenarios(changes),
        changes,
        errors,
        unidentified,
        simulations.figures,
        ratios,
        freedom,
        converged,
    )


def residual_weights(ratios: FloatArray) -> FloatArray:
    """(figures,) weights of the residuals: the inverses of their standard deviations.

    A residual varies as the one measured run does, as the mean over the simulated seeds, and by `MODEL_ERROR`.

    Args:
        ratios: (seeds, figures) log ratios.
    """
    seeds = len(ratios)
    spread = ratios.std(axis=0, ddof=1) if seeds > 1 else np.zeros(ratios.shape[1])
    return 1.0 / np.hypot(spread * math.sqrt(1.0 + 1.0 / seeds), MODEL_ERROR)


def most_cost(
    scenarios: Mapping[str, Scenario],
    cases: Sequence[Case],
    coefficients: Sequence[Coefficient],
    seeds: int,
    evaluations: int,
) -> Cost:
    """Most that `calibrate` costs, whose arguments these are; a fit that converges costs less."""
    point = Cost(0, 0, 0.0)
    for case in cases:
        point = point.plus(run_cost(scenarios[case.scenario], case.measured.rate).times(seeds))
    if not coefficients:
        return point
    tried = 1 + ROUNDS * (evaluations * (2 + len(coefficients)) + 1) if evaluations > 1 else 4 + len(coefficients)
    return point.times(tried)


def identified(jacobian: FloatArray, variance: float, names: Sequence[str]) -> tuple[FloatArray, list[tuple[str, ...]]]:
    """Standard errors of a fit, and what it does not identify.

    The covariance of a least-squares estimate is variance · (JᵀJ)⁻¹; its axes are the right singular vectors of J, and
    its standard errors along them the inverses of the singular values (Bates, Watts: "Nonlinear Regression Analysis",
    1988).

    Args:
        jacobian: (m, n) of the weighted residuals.
        variance: of one weighted residual.
        names: n names of the coefficients.

    Returns:
        (n,) standard errors, and for each direction that is not identified, the coefficients that make it up.
    """
    _, sizes, axes = np.linalg.svd(jacobian)
    sizes = np.concatenate([sizes, np.zeros(len(names) - len(sizes))])
    along = math.sqrt(variance) / np.maximum(sizes, 1e-12)
    errors = np.sqrt(((axes * along[:, None]) ** 2).sum(axis=0))
    unknown: list[tuple[str, ...]] = []
    for axis, error in zip(axes, along, strict=True):
        if error > UNIDENTIFIED_ERROR:
            shares = sorted(zip(np.abs(axis).tolist(), names, strict=True), reverse=True)
            unknown.append(tuple(name for share, name in shares if share >= NAMED_SHARE))
    return errors, unknown
