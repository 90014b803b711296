"""Ratios of two policies' figures, over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import stdtrit

from turbospec.interface import FloatArray
from turbospec_sim.replications import LEVEL


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy's figure over that of the one it is compared with, on the same requests and texts."""

    mean: float
    """Geometric mean."""
    low: float
    high: float
    """Ends of the 95 % interval of the mean, by Student's t over the seeds; NaN for one seed."""

    @classmethod
    def of(cls, logarithms: FloatArray) -> Ratio:
        """From the (seeds,) logarithms of each seed's ratio."""
        mean = float(logarithms.mean())
        half = math.nan
        if len(logarithms) > 1:
            quantile = float(stdtrit(len(logarithms) - 1, 0.5 + LEVEL / 2))
            half = quantile * float(logarithms.std(ddof=1)) / math.sqrt(len(logarithms))
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"
