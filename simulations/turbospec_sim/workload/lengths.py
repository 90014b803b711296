"""Distributions of prompt and output lengths, in tokens."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtr

from turbospec.files.settings import Settings
from turbospec.interface import IntArray
from turbospec_sim.limits import MAX_COUNT, SMALLEST, Count

P99_SIGMAS = 2.3263478740408408
"""Standard deviations from a normal distribution's median to its 99th percentile."""


class ConstantLength(Settings):
    """The same length for every request."""

    distribution: Literal["constant"]
    tokens: Count

    @property
    def mean_tokens(self) -> float:
        """Mean length."""
        return float(self.tokens)

    def draw(self, rng: np.random.Generator, size: int) -> IntArray:
        """(size,) lengths."""
        return np.full(size, self.tokens)


class UniformLength(Settings):
    """Uniform between two lengths, both included."""

    distribution: Literal["uniform"]
    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> UniformLength:
        if self.high < self.low:
            raise ValueError(f"`high` ({self.high}) is below `low` ({self.low}); swap them")
        return self

    @property
    def mean_tokens(self) -> float:
        """Mean length."""
        return (self.low + self.high) / 2.0

    def draw(self, rng: np.random.Generator, size: int) -> IntArray:
        """(size,) lengths."""
        return rng.integers(self.low, self.high, size, endpoint=True)


class LogNormalLength(Settings):
    """Log-normal, given by its mean and the standard deviation of its logarithm, or by its median and P99."""

    distribution: Literal["lognormal"]
    mean: float | None = Field(default=None, ge=SMALLEST, le=MAX_COUNT)
    """Tokens, before clipping; goes with `sigma`."""
    sigma: float | None = Field(default=None, ge=0, le=10)
    """Standard deviation of the natural logarithm."""
    p50: float | None = Field(default=None, ge=SMALLEST, le=MAX_COUNT)
    """Tokens; goes with `p99`."""
    p99: float | None = Field(default=None, ge=SMALLEST, le=MAX_COUNT)
    low: Count = 1
    """Least length; shorter draws are clipped to it."""
    high: Count = MAX_COUNT
    """Largest length; longer draws are clipped to it."""

    @model_validator(mode="after")
    def _one_form(self) -> LogNormalLength:
        given = [name for name in ("mean", "sigma", "p50", "p99") if getattr(self, name) is not None]
        if given not in (["mean", "sigma"], ["p50", "p99"]):
            raise ValueError("give either `mean` and `sigma` or `p50` and `p99`")
        if self.p50 is not None and self.p99 is not None and self.p99 < self.p50:
            raise ValueError(f"`p99` ({self.p99:g}) is below `p50` ({self.p50:g})")
        if self.high < self.low:
            raise ValueError(f"`high` ({self.high}) is below `low` ({self.low}); swap them")
        return self

    @property
    def mean_tokens(self) -> float:
        """Mean length, without the rounding."""
        median, sigma = self.median_and_sigma()
        if sigma == 0.0:
            return min(max(median, self.low), self.high)
        low, high = (math.log(limit / median) / sigma for limit in (self.low, self.high))
        # Clipped to `low`, clipped to `high`, and between them.
        between = ndtr(high - sigma) - ndtr(low - sigma)
        inside = median * math.exp(min(sigma**2 / 2.0, 100.0)) * between if between > 0.0 else 0.0
        return float(self.low * ndtr(low) + self.high * ndtr(-high) + inside)

    def draw(self, rng: np.random.Generator, size: int) -> IntArray:
        """(size,) lengths, rounded to whole tokens and clipped."""
        median, sigma = self.median_and_sigma()
        lengths = np.rint(median * np.exp(sigma * rng.standard_normal(size)))
        return np.clip(lengths, self.low, self.high).astype(np.int64)

    def median_and_sigma(self) -> tuple[float, float]:
        """Median in tokens, and the standard deviation of the logarithm, before clipping."""
        if self.mean is not None and self.sigma is not None:
            return self.mean * math.exp(-(self.sigma**2) / 2.0), self.sigma
        median = self.p50 or 1.0
        return median, math.log((self.p99 or 1.0) / median) / P99_SIGMAS


Lengths = Annotated[ConstantLength | UniformLength | LogNormalLength, Field(discriminator="distribution")]
