"""The folder of `turbospec bench --traces`: which file holds the trace of which run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from turbospec.files.writing import write_whole
from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.observability.trace import LINE, TraceStep
from turbospec_bench.configuration import Configuration


@dataclass(frozen=True, slots=True)
class TraceFolder:
    """The decision traces of a benchmark's counted runs, and the profiles that were measured before them."""

    path: Path

    def trace(self, configuration: Configuration, policy: str, emit: str, number: int) -> Path:
        """The file of one run; rounds count from 1."""
        return self.path / configuration.name / policy / emit / f"round-{number}.jsonl"

    def profile(self, drafter: str) -> Path:
        """The file with the profile (measured step times) of target and drafter."""
        return self.path / f"profile-{drafter}.json"


def write_trace(path: Path, steps: Iterable[tuple[StepView, StepPlan, StepOutcome, float]]) -> None:
    """Write the steps of a run; an existing file is replaced.

    Raises:
        UserError: the file cannot be written.
    """
    write_whole(path, b"".join(LINE.dump_json(TraceStep.from_step(*step)) + b"\n" for step in steps))
