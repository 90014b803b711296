"""Arrivals of requests: random processes, closed loops, and recorded traces."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from turbospec.files.settings import Settings
from turbospec.interface import FloatArray
from turbospec_sim.limits import LARGEST, MAX_ENTRIES, SMALLEST, Count, Positive
from turbospec_sim.workload.files import InputFile


class PoissonArrivals(Settings):
    """Poisson arrivals at a constant rate, as `vllm bench serve` sends them at its default burstiness of 1."""

    process: Literal["poisson"]

    def times(self, rng: np.random.Generator, rate: float, size: int) -> FloatArray:
        """(size,) seconds, rising, at `rate` requests/s."""
        return _gamma_times(rng, rate, size, 1.0)


class GammaArrivals(Settings):
    """Gamma-distributed gaps, as `vllm bench serve --burstiness`."""

    process: Literal["gamma"]
    burstiness: float = Field(gt=0, le=LARGEST)
    """Shape of the distribution: below 1 more bursty than Poisson, above 1 more regular."""

    def times(self, rng: np.random.Generator, rate: float, size: int) -> FloatArray:
        """(size,) seconds, rising, at `rate` requests/s."""
        return _gamma_times(rng, rate, size, self.burstiness)


class BurstArrivals(Settings):
    """Poisson arrivals whose rate alternates between busy and quiet periods."""

    process: Literal["bursts"]
    on_seconds: Positive
    off_seconds: Positive
    off_share: float = Field(default=0.0, ge=0, le=1)
    """Rate of the quiet periods as a share of the busy ones'; 0: no arrivals."""

    @property
    def period_seconds(self) -> float:
        """A busy and a quiet period."""
        return self.on_seconds + self.off_seconds

    def times(self, rng: np.random.Generator, rate: float, size: int) -> FloatArray:
        """(size,) seconds, rising, at `rate` requests/s averaged over both kinds of periods."""
        return _modulated_times(rng, rate, size, [self.on_seconds, self.off_seconds], [1.0, self.off_share])


class DayArrivals(Settings):
    """Poisson arrivals whose rate follows a periodic curve."""

    process: Literal["day"]
    curve: tuple[Annotated[float, Field(ge=0, le=LARGEST)], ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    """Relative rate in each of equal parts of the period."""
    period_seconds: Positive = 86400.0

    @model_validator(mode="after")
    def _somebody_comes(self) -> DayArrivals:
        if max(self.curve) < SMALLEST:
            raise ValueError(f"the curve is 0 everywhere; at least one part must be above 0 (at least {SMALLEST:g})")
        return self

    def times(self, rng: np.random.Generator, rate: float, size: int) -> FloatArray:
        """(size,) seconds, rising, at `rate` requests/s averaged over a period."""
        part = self.period_seconds / len(self.curve)
        return _modulated_times(rng, rate, size, [part] * len(self.curve), self.curve)


class ClosedLoop(Settings):
    """A fixed number of clients, each of which sends its next request when the one before is finished."""

    process: Literal["closed"]
    concurrency: Count


class TraceArrivals(Settings):
    """Recorded arrivals and lengths.

    The file is JSONL or CSV, one request per line: `arrival_time` in seconds, `prompt_tokens`, `output_tokens`, and
    `class`, the name of one of the workload's classes (the first where absent).
    """

    process: Literal["trace"]
    file: InputFile


LEAST_SUM = 1e-280
"""Of random gaps whose ratios are kept."""

OpenArrivals = PoissonArrivals | GammaArrivals | BurstArrivals | DayArrivals
Arrivals = Annotated[OpenArrivals | ClosedLoop | TraceArrivals, Field(discriminator="process")]


def _gamma_times(rng: np.random.Generator, rate: float, size: int, burstiness: float) -> FloatArray:
    """As `vllm bench serve` draws them: the first request has a gap before it, and the last arrives at size / rate."""
    times = np.cumsum(rng.gamma(burstiness, 1.0, size))
    # With a shape near 0 all draws may be 0, or too small to divide by: then all requests arrive at once, as in vLLM.
    return times * (size / rate / times[-1]) if times[-1] > LEAST_SUM else np.zeros(size)


def _modulated_times(
    rng: np.random.Generator, rate: float, size: int, seconds: list[float], intensity: list[float] | tuple[float, ...]
) -> FloatArray:
    """Inhomogeneous Poisson arrivals with a periodic, piecewise constant rate.

    Arrivals of a unit-rate process are mapped by the inverse of the cumulated rate (Çınlar, "Introduction to
    Stochastic Processes", 1975, section 4.7).
    """
    ends = np.concatenate([[0.0], np.cumsum(seconds)])
    cumulated = np.concatenate([[0.0], np.cumsum(np.multiply(seconds, intensity))])
    period = float(ends[-1])
    cumulated *= period / cumulated[-1]
    warped = np.cumsum(rng.standard_exponential(size)) / rate
    periods = np.floor(warped / period)
    return periods * period + np.interp(warped - periods * period, cumulated, ends)
