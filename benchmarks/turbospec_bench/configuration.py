"""A configuration of the benchmark: workload, drafter and load."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turbospec.files.results_file import ALL_AT_ONCE

Row = Mapping[str, Any]
"""One row of a results file (`turbospec bench --json`): one policy in one configuration."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Workload, drafter and load; the load is either a fixed concurrency or a Poisson rate, never both."""

    workload: str
    drafter: str
    concurrency: int | None = None
    """Largest number of requests in flight; all of them are ready at the start."""
    request_rate: float | None = None
    """Poisson arrivals per second."""

    @classmethod
    def of(cls, row: Row) -> Configuration:
        """The configuration that a row belongs to."""
        rate = row["request_rate"]
        return cls(row["workload"], row["drafter"], row["concurrency"], None if rate == ALL_AT_ONCE else rate)

    @property
    def name(self) -> str:
        """Such as `code/good/c8`, or `code/good/r2.5` for Poisson arrivals."""
        arrival = f"c{self.concurrency}" if self.concurrency is not None else f"r{self.request_rate:g}"
        return f"{self.workload}/{self.drafter}/{arrival}"

    @property
    def checksum(self) -> int:
        """Of the name; a part of seeds, so that configurations draw different numbers."""
        return zlib.crc32(self.name.encode())

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
