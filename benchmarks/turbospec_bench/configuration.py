"""A cell of the benchmark's table, as the benchmark measures it and as the rows of its results name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turbospec.files.results_file import ALL_AT_ONCE

Row = Mapping[str, Any]
"""One cell and policy of a results file (`turbospec bench --json`)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the table: either a fixed concurrency or a Poisson rate, never both."""

    workload: str
    drafter: str
    concurrency: int | None = None
    """Requests in flight at most; all are ready at the start."""
    request_rate: float | None = None
    """Poisson arrivals a second."""

    @classmethod
    def of(cls, row: Row) -> Cell:
        """The cell that a row belongs to."""
        rate = row["request_rate"]
        return cls(row["workload"], row["drafter"], row["concurrency"], None if rate == ALL_AT_ONCE else rate)

    @property
    def name(self) -> str:
        arrival = f"c{self.concurrency}" if self.concurrency is not None else f"r{self.request_rate:g}"
        return f"{self.workload}/{self.drafter}/{arrival}"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields by which a row names this cell."""
        return {
            "workload": self.workload,
            "drafter": self.drafter,
            "concurrency": self.concurrency,
            "request_rate": ALL_AT_ONCE if self.request_rate is None else self.request_rate,
        }


def by_cell(rows: Sequence[Row]) -> dict[Cell, list[Row]]:
    """Rows grouped by cell, in the order of their first row."""
    cells: dict[Cell, list[Row]] = {}
    for row in rows:
        cells.setdefault(Cell.of(row), []).append(row)
    return cells
