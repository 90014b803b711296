"""The results file: one row per configuration and policy, with medians, spread and the figures of every round."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from turbospec.errors import UserError
from turbospec.files.results_file import save
from turbospec_bench.configuration import Configuration, Row
from turbospec_bench.contender import Run
from turbospec_bench.policy_names import OFF
from turbospec_bench.stats import paired_ratio
from turbospec_bench.variant import Variant

RATIOS = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms")
"""Figures that a row also gives as ratios to `off`."""


@dataclass(slots=True)
class Results:
    """A results file and its content."""

    path: Path
    meta: dict[str, Any]
    """How it was measured, for the reader and for `--resume`."""
    rows: list[Row] = field(default_factory=list[Row])

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing or is not a results file.
        """
        try:
            document = json.loads(path.read_text())
            return cls(path, document["meta"], document["rows"])
        except OSError as error:
            raise UserError(f"{path}: cannot read the results ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a file that `turbospec bench --json` wrote ({error})") from error

    def save(self) -> None:
        """Write the file at once, so that an interruption leaves either the old one or the new one."""
        save(self.path, self.meta, self.rows)

    def of_configuration(self, configuration: Configuration) -> list[Row]:
        return [row for row in self.rows if Configuration.of(row) == configuration]

    def has(self, configuration: Configuration, variants: Sequence[Variant], rounds: int) -> bool:
        """Whether every variant of a configuration has at least so many rounds."""
        finished = {
            (row["policy"], row["emit"]) for row in self.of_configuration(configuration) if row["rounds"] >= rounds
        }
        return all((variant.name, variant.emit) in finished for variant in variants)

    def put(self, configuration: Configuration, variants: Sequence[Variant], rounds: Sequence[Sequence[Run]]) -> None:
        """Replace a configuration's rows with those of its counted rounds; `off` must be among the variants."""
        self.rows = [row for row in self.rows if Configuration.of(row) != configuration]
        baseline = next(place for place, variant in enumerate(variants) if variant.policy == OFF)
        off = [runs[baseline].figures for runs in rounds]
        disturbed = [number for number, runs in enumerate(rounds, start=1) if any(run.disturbed for run in runs)]
        for place, variant in enumerate(variants):
            self.rows.append(_row(configuration, variant, [runs[place] for runs in rounds], off, disturbed))

    def collect(
        self,
        configuration: Configuration,
        variants: Sequence[Variant],
        rounds: Iterable[Sequence[Run]],
        enough: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Play a configuration's rounds and save its rows; an interruption keeps the rounds that are finished.

        Args:
            enough: whether this many rounds are enough.
        """
        played: list[Sequence[Run]] = []
        try:
            for runs in rounds:
                played.append(runs)
                if enough(len(played)):
                    break
        finally:
            if played:
                self.put(configuration, variants, played)
                self.save()


def _row(
    configuration: Configuration,
    variant: Variant,
    runs: Sequence[Run],
    off: Sequence[dict[str, float]],
    disturbed: Sequence[int],
) -> Row:
    """One row.

    Each figure is the median over rounds; `spread` has its lower and upper quartile, `ratio_to_off` the median paired
    ratio with its 95 % interval, `round_figures` what each round measured. `other_cores` is the number of cores that
    other processes used during each of this policy's runs, `disturbed_rounds` the rounds, from 1, in which they used
    more than was left to them during a run of any policy. The timeline is the last round's.
    """
    figures = {name: np.array([run.figures[name] for run in runs]) for name in runs[0].figures}
    return {
        **configuration.fields,
        "policy": variant.name,
        "emit": variant.emit,
        "rounds": len(runs),
        **{name: float(np.median(values)) for name, values in figures.items()},
        "spread": {name: np.percentile(values, [25, 75]).tolist() for name, values in figures.items()},
        "ratio_to_off": {
            name: asdict(paired_ratio(figures[name].tolist(), [round_figures[name] for round_figures in off]))
            for name in RATIOS
        },
        "round_figures": {name: values.tolist() for name, values in figures.items()},
        "other_cores": [run.other_cores for run in runs],
        "disturbed_rounds": disturbed,
        **runs[-1].record,
    }
