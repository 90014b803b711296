"""Statistics over paired rounds: machines drift, so only figures of the same round are divided by one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospec.interface import FloatArray

RESAMPLES = 2000
SEED = 0
"""Of the resampling: the same rounds have the same interval."""
LEVEL = 0.95
HONEST_ROUNDS = 6
"""Fewest rounds for which a 95 % interval can have that coverage: the median lies outside all of n values with
probability 2 · 0.5ⁿ, which is 3 % for six and 25 % for three, and no resampling reaches beyond the values."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    rounds: int
    """The fewest of a sample."""

    @property
    def has_honest_interval(self) -> bool:
        """Whether there are enough rounds for the interval to have its coverage."""
        return self.rounds >= HONEST_ROUNDS

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class BestRival:
    """A policy against the best of some rivals, the best being chosen on rounds that the comparison does not use."""

    rivals: tuple[str, str]
    """Chosen on the even rounds and on the odd ones."""
    ratios: FloatArray
    """One for each round, against the rival that was chosen on the other half."""


def median_ratio(ratios: Sequence[float] | FloatArray) -> Ratio:
    """Median of paired ratios with its percentile-bootstrap interval over rounds."""
    return _with_interval([np.asarray(ratios, float)], np.median)


def paired_ratio(values: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Median over rounds of value / baseline of the same round."""
    return median_ratio(np.asarray(values, float) / np.asarray(baseline, float))


def best_rival(values: Sequence[float], rivals: Mapping[str, Sequence[float]]) -> BestRival:
    """Compare with the rival of the highest median, chosen on half of the rounds and compared on the other half.

    The winner of several noisy figures is flattered by the noise that made it win; on rounds that did not choose it,
    it is not. Halves are the even and the odd rounds; they swap roles and their ratios are pooled.

    Args:
        values: a figure for each round, higher is better; at least two rounds.
        rivals: the same figure of each rival, same rounds.
    """
    own = np.asarray(values, float)
    figures = {name: np.asarray(rounds, float) for name, rounds in rivals.items()}
    even = np.arange(len(own)) % 2 == 0
    ratios = np.empty(len(own))
    chosen: list[str] = []
    for half in (even, ~even):
        best = max(figures, key=lambda name: float(np.median(figures[name][half])))
        ratios[~half] = own[~half] / figures[best][~half]
        chosen.append(best)
    return BestRival((chosen[0], chosen[1]), ratios)


def geometric_mean(samples: Sequence[Sequence[float] | FloatArray]) -> Ratio:
    """Geometric mean of the samples' medians with its percentile-bootstrap interval.

    Args:
        samples: paired ratios of the rounds, one sample for each configuration. Each is resampled by itself.
    """
    return _with_interval([np.asarray(ratios, float) for ratios in samples], _mean_of_medians)


def _mean_of_medians(*samples: FloatArray, axis: int = -1) -> FloatArray:
    logs = [np.log(np.median(sample, axis=axis)) for sample in samples]
    return np.exp(np.mean(np.broadcast_arrays(*logs), axis=0))


def _with_interval(samples: Sequence[FloatArray], statistic: Callable[..., Any]) -> Ratio:
    """A statistic of the samples with its interval; a sample of one round cannot be resampled and is taken as exact."""
    value, rounds = float(statistic(*samples)), min(map(len, samples))
    several = [sample for sample in samples if len(sample) > 1]
    if not several:
        return Ratio(value, value, value, rounds)
    # Takes most of a second, which `turbospec bench --help` does not need.
    from scipy.stats import bootstrap

    single = [sample for sample in samples if len(sample) == 1]
    found: Any = bootstrap(
        several,
        lambda *resampled, axis=-1: statistic(*resampled, *single, axis=axis),
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(SEED),
    )
    return Ratio(value, float(found.confidence_interval.low), float(found.confidence_interval.high), rounds)
