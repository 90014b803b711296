"""The folder of `turbospec bench --traces`: which file holds the trace of which run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from turbospec.errors import UserError
from turbospec.interface import StepOutcome, StepPlan, StepView
from turbospec.observability.trace import DecisionTrace
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

    def make(self) -> None:
        """Make the folder; called before anything is measured, so that a mistake shows early.

        Raises:
            UserError: it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot keep traces there ({error.strerror}); name another folder with --traces"
            ) from error


def write_trace(path: Path, steps: Iterable[tuple[StepView, StepPlan, StepOutcome, float]]) -> None:
    """Write the steps of a run; an existing file is replaced.

    Raises:
        UserError: the file cannot be opened for writing.
    """
    with DecisionTrace(path, max_bytes=sys.maxsize, backups=0) as trace:
        for step in steps:
            trace.on_step(*step)
