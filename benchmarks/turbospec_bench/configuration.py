"""A configuration of the benchmark's table, as the benchmark measures it and as the rows of its results name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turbospec.files.results_file import ALL_AT_ONCE

Row = Mapping[str, Any]
"""One configuration and policy of a results file (`turbospec bench --json`)."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One setting of the table: either a fixed concurrency or a Poisson rate, never both."""

    workload: str
    drafter: str
    concurrency: int | None = None
    """Requests in flight at most; all are ready at the start."""
    request_rate: float | None = None
    """Poisson arrivals a second."""

    @classmethod
    def of(cls, row: Row) -> Configuration:
        """The configuration that a row belongs to."""
        rate = row["request_rate"]
        return cls(row["workload"], row["drafter"], row["concurrency"], None if rate == ALL_AT_ONCE else rate)

    @property
    def name(self) -> str:
        arrival = f"c{self.concurrency}" if self.concurrency is not None else f"r{self.request_rate:g}"
        return f"{self.workload}/{self.drafter}/{arrival}"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields by which a row names this configuration."""
        return {
            "workload": self.workload,
            "drafter": self.drafter,
            "concurrency": self.concurrency,
            "request_rate": ALL_AT_ONCE if self.request_rate is None else self.request_rate,
        }


def by_configuration(rows: Sequence[Row]) -> dict[Configuration, list[Row]]:
    """Rows grouped by configuration, in the order of their first row."""
    configurations: dict[Configuration, list[Row]] = {}
    for row in rows:
        configurations.setdefault(Configuration.of(row), []).append(row)
    return configurations
