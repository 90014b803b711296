"""Ratio of a figure under two policies, over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from turbospec.interface import FloatArray
from turbospec_sim.replications import half_width


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy's figure over another one's, with the same requests and acceptance."""

    mean: float
    """Geometric mean."""
    low: float
    high: float
    """Ends of the 95 % confidence interval of the mean, by Student's t over the seeds; NaN for one seed."""

    @classmethod
    def of(cls, logarithms: FloatArray) -> Ratio:
        """From the (seeds,) logarithms of the ratio."""
        mean, half = float(logarithms.mean()), half_width(logarithms)
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"
