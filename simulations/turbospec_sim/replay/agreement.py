"""How close simulated runs come to the embedded engine's own: those of a benchmark that kept its traces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turbospec.errors import UserError
from turbospec.profile import Profile
from turbospec.telemetry.cell import Cell, Row
from turbospec.telemetry.trace import read_trace
from turbospec.telemetry.trace_folder import TraceFolder
from turbospec_sim.replay.replay import Replay

FIGURES = ("output_throughput", "mean_tpot_ms", "mean_ttft_ms")
BY_PROFILE, BY_TRACE = "profile", "trace"
"""Step times as they were measured before the run, and as they were in the run itself."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A run, and what the simulator makes of its requests and recorded drafts."""

    cell: Cell
    policy: str
    emit: str
    number: int
    """Its round, from 1."""
    step_times: str
    """`BY_PROFILE` or `BY_TRACE`."""
    measured: dict[str, float]
    """By the benchmark's client."""
    simulated: dict[str, float]
    steps: int
    simulated_steps: int

    @property
    def run(self) -> tuple[Cell, str, str, int]:
        """What tells the run from others."""
        return self.cell, self.policy, self.emit, self.number

    def error(self, figure: str) -> float:
        """Simulated over measured, less 1."""
        return self.simulated[figure] / self.measured[figure] - 1.0

    def document(self) -> Row:
        """A row of results."""
        return {
            **self.cell.fields,
            "policy": self.policy,
            "emit": self.emit,
            "round": self.number,
            "step_times": self.step_times,
            **{f"measured_{figure}": value for figure, value in self.measured.items()},
            **self.simulated,
            **{f"{figure}_error": self.error(figure) for figure in FIGURES},
            "measured_engine_steps": self.steps,
            "engine_steps": self.simulated_steps,
        }


def read_rows(path: Path) -> Sequence[Row]:
    """The rows of a benchmark's results that the embedded engine gave.

    Raises:
        UserError: the file cannot be read, is none, or has no such row.
    """
    try:
        rows = [row for row in json.loads(path.read_text())["rows"] if row["emit"] is not None]
    except OSError as error:
        raise UserError(f"{path}: cannot read the results ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a file that `turbospec bench --json` wrote ({error})") from error
    if not rows:
        raise UserError(f"{path}: no row of the embedded engine in it; run `turbospec bench --traces FOLDER`")
    return rows


def agreements(rows: Sequence[Row], folder: TraceFolder) -> Iterator[Agreement]:
    """Simulate every counted run of a benchmark in the embedded engine, once with each kind of step times.

    Args:
        rows: of the benchmark's results, without those of other engines.
        folder: what it kept.

    Raises:
        UserError: a trace or a profile cannot be read.
    """
    for row in rows:
        cell, policy, emit = Cell.of(row), row["policy"], row["emit"]
        profile = Profile.load(folder.profile(cell.drafter))
        for index in range(row["rounds"]):
            steps = list(read_trace(folder.trace(cell, policy, emit, index + 1)))
            measured = {figure: row["round_figures"][figure][index] for figure in FIGURES}
            for source, times in ((BY_PROFILE, profile), (BY_TRACE, None)):
                simulated = Replay(steps, profile=times, concurrency=cell.concurrency).as_recorded()
                yield Agreement(
                    cell,
                    policy,
                    emit,
                    index + 1,
                    source,
                    measured,
                    {figure: simulated[figure] for figure in FIGURES},
                    len(steps),
                    simulated["engine_steps"],
                )


def mean_and_worst(found: Sequence[Agreement], figure: str) -> tuple[float, float]:
    """Mean of a figure's errors without their sign, and the one that is furthest from 0."""
    errors = np.array([agreement.error(figure) for agreement in found])
    return float(np.abs(errors).mean()), float(errors[np.argmax(np.abs(errors))])
