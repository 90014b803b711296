"""Replications: runs that differ only in their seed, and their mean figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from turbospec.interface import FloatArray
from turbospec_sim.fixed_plans import chosen_in_words

Row = Mapping[str, Any]
"""A row of results, simulated or read from a file (null where a figure is not finite)."""

LEVEL = 0.95
"""Level of confidence intervals."""


def figure(row: Row, name: str) -> float:
    """A figure of a row; NaN where it is not finite, as null in a row from a file."""
    value = row[name]
    return math.nan if value is None else float(value)


def half_width(values: FloatArray) -> float:
    """Half of the 95 % confidence interval of the mean of (n,) values, by Student's t; NaN with fewer than two."""
    if len(values) < 2:
        return math.nan
    quantile = float(stdtrit(len(values) - 1, 0.5 + LEVEL / 2))
    return quantile * float(values.std(ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True)
class Replications:
    """A policy under one load: its rows, one per seed."""

    policy: str
    rate: float | str
    """Requests/s, or "inf" where the workload has no rate."""
    rows: Sequence[Row]

    @property
    def load(self) -> str:
        """The rate, or the number of clients of a closed loop."""
        if isinstance(self.rate, float):
            return f"{self.rate:g}"
        clients = self.rows[0]["concurrency"]
        return "all at once" if clients is None else f"{clients} at once"

    @property
    def load_name(self) -> str:
        """The load with its unit."""
        return f"{self.load} requests/s" if isinstance(self.rate, float) else self.load

    @property
    def label(self) -> str:
        """The policy, and what was chosen in hindsight."""
        chosen = sorted({words for row in self.rows if (words := chosen_in_words(row))})
        return f"{self.policy} ({'; '.join(chosen)})" if chosen else self.policy

    @property
    def slo_met_share(self) -> float | None:
        """Share of the runs that met the SLO; None without an SLO."""
        verdicts = [row["slo_met"] for row in self.rows if row["slo_met"] is not None]
        return sum(verdicts) / len(verdicts) if verdicts else None

    @property
    def verdict(self) -> str:
        """Whether the SLO was met, in words."""
        share, number = self.slo_met_share, len(self.rows)
        if share is None:
            return "–"
        if number == 1:
            return "met" if share else "missed"
        return f"met in {round(share * number)} of {number}"

    def mean(self, field: str) -> float:
        """Mean of a figure over the seeds that have it; NaN where none does."""
        values = self._values(field)
        return float(values.mean()) if len(values) else math.nan

    def half_width(self, field: str) -> float:
        """Half of the 95 % confidence interval of a figure's mean; NaN with fewer than two seeds."""
        return half_width(self._values(field))

    def words(self, field: str, form: str) -> str:
        """Mean and, with several seeds, ± half of its interval; – without a figure."""
        mean, half = self.mean(field), self.half_width(field)
        if math.isnan(mean):
            return "–"
        return format(mean, form) if math.isnan(half) else f"{mean:{form}} ± {half:{form}}"

    def _values(self, field: str) -> FloatArray:
        values = np.array([row[field] for row in self.rows], np.float64)
        return values[np.isfinite(values)]


def replications(rows: Sequence[Row]) -> dict[str, list[Replications]]:
    """Rows grouped over seeds, by scenario, in the order of their first rows."""
    groups: dict[tuple[str, str, Any], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["scenario"], row["policy"], row["request_rate"]), []).append(row)
    by_scenario: dict[str, list[Replications]] = {}
    for (scenario, policy, rate), same in groups.items():
        by_scenario.setdefault(scenario, []).append(Replications(policy, rate, same))
    return by_scenario
