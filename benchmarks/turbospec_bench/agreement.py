"""The simulator's error against the embedded engine, on the runs of a benchmark that kept its traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turbospec.errors import UserError
from turbospec.models.profile import LatencySample, Profile
from turbospec.observability.trace import read_trace
from turbospec_bench.configuration import Configuration, Row, by_configuration
from turbospec_bench.results import Results
from turbospec_bench.trace_folder import TraceFolder
from turbospec_sim.replay.replay import Replay

FIGURES = ("output_throughput", "mean_tpot_ms", "mean_ttft_ms")
BY_PROFILE, BY_OTHERS, BY_TRACE = "profile", "others", "trace"
"""Where a simulation's step times come from: the profile measured before the benchmark; the interleaved runs of other
policies in the same configuration; the run itself."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A measured run and the simulation of its requests and recorded drafts."""

    configuration: Configuration
    policy: str
    emit: str
    number: int
    """The round, from 1."""
    step_times: str
    """`BY_PROFILE`, `BY_OTHERS` or `BY_TRACE`."""
    measured: dict[str, float]
    """By the benchmark's client."""
    simulated: dict[str, float]
    steps: int
    simulated_steps: int

    @property
    def variant(self) -> tuple[Configuration, str, str]:
        """Configuration, policy and order of emission: what the rounds of a variant have in common."""
        return self.configuration, self.policy, self.emit

    def error(self, figure: str) -> float:
        """Simulated / measured − 1."""
        return self.simulated[figure] / self.measured[figure] - 1.0

    def document(self) -> Row:
        """A row of results."""
        return {
            **self.configuration.fields,
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
    """The rows of a benchmark's results that were measured in the embedded engine.

    Raises:
        UserError: the file cannot be read, is not a results file, or has no such row.
    """
    rows = [row for row in Results.load(path).rows if row["emit"] is not None]
    if not rows:
        raise UserError(f"{path}: no row of the embedded engine in it; run `turbospec bench --traces FOLDER`")
    return rows


def agreements(rows: Sequence[Row], folder: TraceFolder) -> Iterator[Agreement]:
    """Simulate every counted run of a benchmark in the embedded engine, once with each kind of step times.

    There are none of other policies' runs where no other policy ran, or none that drafts while this one does. Requests,
    drafts, what was accepted of them and the pauses between steps are the run's own in all three.

    Args:
        rows: of the benchmark's results, without those of other engines.
        folder: what it kept.

    Raises:
        UserError: a trace or a profile cannot be read.
    """
    for configuration, own in by_configuration(rows).items():
        yield from _agreements(configuration, own, folder)


def _agreements(configuration: Configuration, rows: Sequence[Row], folder: TraceFolder) -> Iterator[Agreement]:
    """The agreements of one configuration's runs."""
    profile = Profile.load(folder.profile(configuration.drafter))
    runs = {
        (row["policy"], row["emit"], number): list(
            read_trace(folder.trace(configuration, row["policy"], row["emit"], number))
        )
        for row in rows
        for number in range(1, row["rounds"] + 1)
    }
    own = {run: Replay(steps, concurrency=configuration.concurrency) for run, steps in runs.items()}
    for row in rows:
        policy, emit = row["policy"], row["emit"]
        others = [sample for run in runs if run[0] != policy for sample in own[run].recording.samples]
        mine = [sample for run in runs if run[:2] == (policy, emit) for sample in own[run].recording.samples]
        tells = others and (not _drafts(mine) or _drafts(others))
        profiles = {BY_PROFILE: profile} | ({BY_OTHERS: Profile(others)} if tells else {})
        for number in range(1, row["rounds"] + 1):
            steps = runs[policy, emit, number]
            measured = {figure: row["round_figures"][figure][number - 1] for figure in FIGURES}
            replays = {
                source: Replay(steps, profile=times, concurrency=configuration.concurrency)
                for source, times in profiles.items()
            }
            for source, replay in (replays | {BY_TRACE: own[policy, emit, number]}).items():
                figures = replay.as_recorded()
                simulated = {figure: figures[figure] for figure in FIGURES}
                yield Agreement(
                    configuration,
                    policy,
                    emit,
                    number,
                    source,
                    measured,
                    simulated,
                    len(steps),
                    figures["engine_steps"],
                )


def _drafts(samples: Sequence[LatencySample]) -> bool:
    return any(sample.draft_rows for sample in samples)


def median_errors(found: Sequence[Agreement], figure: str) -> dict[tuple[Configuration, str, str], float]:
    """The median of a figure's error over the rounds, by configuration, policy and order of emission."""
    rounds: dict[tuple[Configuration, str, str], list[float]] = {}
    for agreement in found:
        rounds.setdefault(agreement.variant, []).append(agreement.error(figure))
    return {run: float(np.median(errors)) for run, errors in rounds.items()}
