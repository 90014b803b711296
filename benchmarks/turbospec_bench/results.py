"""The results file: one row per configuration and policy, with medians, spread and the figures of every round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from turbospec.errors import UserError
from turbospec.files.reading import read_json
from turbospec.files.results_file import save
from turbospec_bench.configuration import Configuration, Row
from turbospec_bench.contender import Run
from turbospec_bench.policy_names import OFF
from turbospec_bench.results_format import RATIOS, ResultFile
from turbospec_bench.stats import Ratio, paired_ratio
from turbospec_bench.variant import Variant

WRITER = "`turbospec bench --json`"
RECORDS = ("timeline", "step_times", "acceptance_by_position")
"""What a row may have of its last round besides figures."""


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
            UserError: the file is missing, or is not a results file whose rows have everything that is read later.
        """
        document = read_json(path, "results file", hint=f"name one that {WRITER} wrote")
        try:
            ResultFile.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise UserError(f"{path}: not a file that {WRITER} wrote ({where}: {first['msg']})") from error
        return cls(path, document["meta"], document["rows"])

    def save(self) -> None:
        """Write the file at once, so that an interruption leaves either the old one or the new one.

        Raises:
            UserError: it cannot be written; the error says where its content is kept.
        """
        save(self.path, self.meta, self.rows)

    def of_configuration(self, configuration: Configuration) -> list[Row]:
        return [row for row in self.rows if Configuration.of(row) == configuration]

    def check_resumable(self, configuration: Configuration, variants: Sequence[Variant]) -> None:
        """Check that rounds of these variants can be added to a configuration's rows.

        Raises:
            UserError: the rows are of other policies, with which new rounds could not be paired.
        """
        there = {(row["policy"], row["emit"]) for row in self.of_configuration(configuration)}
        wanted = {(variant.name, variant.emit) for variant in variants}
        if there and there != wanted:
            differing = ", ".join(sorted({name for name, _ in there ^ wanted}))
            raise UserError(
                f"{self.path}: {configuration.name} was measured with another selection of policies ({differing}); "
                "resume with the same one, or start a new file"
            )

    def rounds_of(self, configuration: Configuration, variants: Sequence[Variant]) -> list[list[Run]]:
        """The finished rounds of a configuration, each with a run of every variant; none without its rows.

        Of what a run records besides figures, only the last round has any.
        """
        rows = {(row["policy"], row["emit"]): row for row in self.of_configuration(configuration)}
        own = [rows.get((variant.name, variant.emit)) for variant in variants]
        found = [row for row in own if row is not None]
        if len(found) < len(own):
            return []
        return [[_run(row, number) for row in found] for number in range(1, found[0]["rounds"] + 1)]

    def missing_rounds(self, configuration: Configuration, variants: Sequence[Variant], rounds: int) -> Sequence[int]:
        """The numbers, from 1, of the rounds that a configuration lacks.

        Raises:
            UserError: as for `check_resumable`.
        """
        if self.has(configuration, variants, rounds):
            return ()
        self.check_resumable(configuration, variants)
        return range(len(self.rounds_of(configuration, variants)) + 1, rounds + 1)

    def has(self, configuration: Configuration, variants: Sequence[Variant], rounds: int) -> bool:
        """Whether every variant of a configuration has at least so many rounds."""
        finished = {
            (row["policy"], row["emit"]) for row in self.of_configuration(configuration) if row["rounds"] >= rounds
        }
        return all((variant.name, variant.emit) in finished for variant in variants)

    def put(self, configuration: Configuration, variants: Sequence[Variant], rounds: Sequence[Sequence[Run]]) -> None:
        """Replace a configuration's rows with those of its counted rounds; `off` must be among the variants."""
        baseline = next(place for place, variant in enumerate(variants) if variant.policy == OFF)
        off = [runs[baseline].figures for runs in rounds]
        disturbed = [number for number, runs in enumerate(rounds, start=1) if any(run.disturbed for run in runs)]
        own = [
            _row(configuration, variant, [runs[place] for runs in rounds], off, disturbed)
            for place, variant in enumerate(variants)
        ]
        # At once: the intervals take most of a second, in which an interruption must not cost the earlier rounds.
        self.rows = [*(row for row in self.rows if Configuration.of(row) != configuration), *own]

    def collect(
        self,
        configuration: Configuration,
        variants: Sequence[Variant],
        rounds: Iterable[Sequence[Run]],
        enough: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Play a configuration's rounds, after those that its rows have, and save them after each of them.

        Args:
            rounds: those that are still to be played.
            enough: whether this many rounds are enough.

        Raises:
            UserError: the file cannot be written.
        """
        played: list[Sequence[Run]] = [*self.rounds_of(configuration, variants)]
        for runs in rounds:
            played.append(runs)
            self.put(configuration, variants, played)
            self.save()
            if enough(len(played)):
                break


def _run(row: Row, number: int) -> Run:
    """A round's run, as a row has it; rounds count from 1."""
    last = number == row["rounds"]
    figures: Mapping[str, Sequence[float | None]] = row["round_figures"]
    of_round = {name: values[number - 1] for name, values in figures.items()}
    return Run(
        # A figure that was not finite is None in the file.
        {name: math.nan if value is None else value for name, value in of_round.items()},
        {name: row[name] for name in RECORDS if last and row.get(name) is not None},
        other_cores=(row.get("other_cores") or [None] * row["rounds"])[number - 1],
        disturbed=number in row.get("disturbed_rounds", ()),
    )


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
    # A round without drafts has no acceptance rate; the others do.
    known = {name: values[np.isfinite(values)] for name, values in figures.items()}
    return {
        **configuration.fields,
        "policy": variant.name,
        "emit": variant.emit,
        "rounds": len(runs),
        **{name: float(np.median(values)) if len(values) else math.nan for name, values in known.items()},
        "spread": {
            name: np.percentile(values, [25, 75]).tolist() if len(values) else [math.nan] * 2
            for name, values in known.items()
        },
        "ratio_to_off": {
            name: _ratio_fields(paired_ratio(figures[name].tolist(), [round_figures[name] for round_figures in off]))
            for name in RATIOS
        },
        "round_figures": {name: values.tolist() for name, values in figures.items()},
        "other_cores": [run.other_cores for run in runs],
        "disturbed_rounds": disturbed,
        **runs[-1].record,
    }


def _ratio_fields(ratio: Ratio) -> dict[str, float]:
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}
