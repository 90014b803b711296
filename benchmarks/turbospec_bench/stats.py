"""Statistics over paired rounds: machines drift, so only figures of the same round are divided by one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turbospec.interface import FloatArray

RESAMPLES = 2000
LEVEL_PERCENT = 95.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class BestFixed:
    """A policy against the best of some rivals, the best being chosen on rounds that the comparison does not use."""

    rivals: tuple[str, str]
    """Chosen on the even rounds and on the odd ones."""
    ratios: FloatArray
    """One for each round, against the rival that was chosen on the other half."""


def median_ratio(ratios: Sequence[float] | FloatArray, seed: int = 0) -> Ratio:
    """Median of paired ratios with its bootstrap interval over rounds."""
    sample = np.asarray(ratios, float)
    return _interval(float(np.median(sample)), np.median(_resampled(sample, np.random.default_rng(seed)), axis=1))


def paired_ratio(values: Sequence[float], baseline: Sequence[float], seed: int = 0) -> Ratio:
    """Median over rounds of value / baseline of the same round."""
    return median_ratio(np.asarray(values, float) / np.asarray(baseline, float), seed)


def best_fixed(values: Sequence[float], rivals: Mapping[str, Sequence[float]]) -> BestFixed:
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
    return BestFixed((chosen[0], chosen[1]), ratios)


def geometric_mean(configurations: Sequence[Sequence[float] | FloatArray], seed: int = 0) -> Ratio:
    """Geometric mean of the configurations' median ratios; the interval resamples rounds within each configuration."""
    rng = np.random.default_rng(seed)
    samples = [np.asarray(ratios, float) for ratios in configurations]
    value = float(np.exp(np.mean([np.log(np.median(sample)) for sample in samples])))
    logs = np.stack([np.log(np.median(_resampled(sample, rng), axis=1)) for sample in samples])
    return _interval(value, np.exp(logs.mean(axis=0)))


def _resampled(sample: FloatArray, rng: np.random.Generator) -> FloatArray:
    return sample[rng.integers(0, len(sample), (RESAMPLES, len(sample)))]


def _interval(value: float, replicates: FloatArray) -> Ratio:
    tail = (100 - LEVEL_PERCENT) / 2
    low, high = np.percentile(replicates, [tail, 100 - tail])
    return Ratio(value, float(low), float(high))
