"""Search of a policy's settings: exhaustive where they are few, else by scipy's differential evolution (Storn, Price:
"Differential evolution", J. Global Optimization 11, 1997); evaluated on held-out seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import numpy as np
from pydantic import ValidationError
from scipy.optimize import Bounds, differential_evolution
from scipy.stats import qmc

from turbospec.errors import UserError
from turbospec.interface import FloatArray
from turbospec.policy import PolicyConfig
from turbospec_sim.ratio import Ratio
from turbospec_sim.tuning.objective import Trials
from turbospec_sim.tuning.space import Dimension

MIN_POPULATION = 5
"""Smallest population of differential evolution."""
GENERATIONS = 5
"""Number of generations, where there are enough trials."""

Settings = tuple[int | float, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Result of a search."""

    config: PolicyConfig
    changed: dict[str, int | float]
    """The searched settings and their best values; empty where the default was best."""
    trials: int
    """Number of settings tried, the default not counted."""
    trained: Ratio
    held_out: Ratio | None
    """The ratio on held-out seeds; None where the default was best."""
    default_figures: tuple[float, float]
    """The objective's mean with the default policy, on the seeds of the search and on the held-out ones."""
    tuned_figures: tuple[float, float]

    @property
    def beyond_noise(self) -> bool:
        """Whether the 95 % interval of the gain on held-out seeds is above 1."""
        return self.held_out is not None and self.held_out.low > 1.0


def tune(
    config: PolicyConfig,
    space: Sequence[Dimension],
    training: Trials,
    held_out: Trials,
    *,
    trials: int,
    seed: int,
    done: Callable[[], None] = lambda: None,
) -> Tuned:
    """Search a policy's settings for the best mean ratio of the objective to that of the given policy.

    Args:
        config: the given policy; its settings outside the space are kept.
        space: the settings to search.
        training: runs for the search.
        held_out: runs that evaluate the best settings.
        trials: about how many settings to try, at least 5; where there are fewer settings, all are tried.
        seed: of the search.
        done: called after each run.
    """
    (default,) = training.figures([config], done)
    logarithms: dict[Settings, FloatArray] = {}
    figures: dict[Settings, float] = {}

    def losses(places: FloatArray) -> FloatArray:
        """(candidates,) losses of (dimensions, candidates) coordinates."""
        wanted = [_settings(space, column) for column in places.T]
        new = [settings for settings in dict.fromkeys(wanted) if settings not in logarithms]
        measured = training.figures([_with(config, space, settings) for settings in new], done) if new else ()
        for settings, found in zip(new, measured, strict=True):
            logarithms[settings] = training.log_ratios(found, default)
            figures[settings] = float(found.mean())
        return np.array([-logarithms[settings].mean() for settings in wanted])

    if math.prod(dimension.choices for dimension in space) <= trials:
        losses(np.array([*product(*(dimension.all_places() for dimension in space))]).T)
    else:
        population = max(MIN_POPULATION, trials // GENERATIONS)
        differential_evolution(
            cast(Any, losses),  # the stubs know one candidate at a time
            Bounds(np.zeros(len(space)), np.ones(len(space))),
            init=_first(config, space, population, seed),
            maxiter=max(trials // population - 1, 0),
            tol=0.0,
            polish=False,
            vectorized=True,
            updating="deferred",
            seed=seed,
        )
    best = max(logarithms, key=lambda settings: float(logarithms[settings].mean()))
    trained = Ratio.of(logarithms[best])
    if trained.mean <= 1.0:
        (unseen,) = held_out.figures([config], done)
        means = (float(default.mean()), float(unseen.mean()))
        return Tuned(config, {}, len(logarithms), Ratio(1.0, math.nan, math.nan), None, means, means)
    tuned = _with(config, space, best)
    unseen, unseen_tuned = held_out.figures([config, tuned], done)
    return Tuned(
        config=tuned,
        changed=dict(zip((dimension.field for dimension in space), best, strict=True)),
        trials=len(logarithms),
        trained=trained,
        held_out=Ratio.of(held_out.log_ratios(unseen_tuned, unseen)),
        default_figures=(float(default.mean()), float(unseen.mean())),
        tuned_figures=(figures[best], float(unseen_tuned.mean())),
    )


def _first(config: PolicyConfig, space: Sequence[Dimension], population: int, seed: int) -> FloatArray:
    """(population, dimensions) initial coordinates: the given policy, and others by Latin hypercube sampling."""
    places = qmc.LatinHypercube(len(space), seed=seed).random(population)
    for number, dimension in enumerate(space):
        value = getattr(config, dimension.field)
        if value is not None:
            places[0, number] = dimension.place(float(value))
    return places


def _settings(space: Sequence[Dimension], places: FloatArray) -> Settings:
    return tuple(dimension.value(float(place)) for dimension, place in zip(space, places, strict=True))


def _with(config: PolicyConfig, space: Sequence[Dimension], settings: Settings) -> PolicyConfig:
    changed = dict(zip((dimension.field for dimension in space), settings, strict=True))
    try:
        # With validation: settings may constrain one another.
        return type(config).model_validate(config.model_dump(exclude_unset=True) | changed)
    except ValidationError as error:
        said = error.errors(include_url=False)[0]["msg"]
        raise UserError(f"the policy does not allow {changed} ({said}); narrow the ranges of --search") from error
