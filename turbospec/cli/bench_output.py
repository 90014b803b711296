"""What both benchmarks print, and where their results come from and go."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from turbospec.cli.console import stderr, stdout, table
from turbospec.errors import UserError
from turbospec.files.results_file import keep_earlier
from turbospec.files.writing import check_folder, check_outputs
from turbospec_bench.configuration import Configuration, Row
from turbospec_bench.table_rows import COLUMNS, disturbance, table_line

if TYPE_CHECKING:
    from turbospec_bench.results import Results
    from turbospec_bench.targets import Verdict

VERDICTS = {True: ("met", "green"), False: ("missed", "red"), None: ("not judged", "yellow")}
ADDED_LATER = {"scale": 1, "gpu": None, "lookup": "", "omp_wait_policy": ""}
"""Fields that older results lack, and what they were then."""
NOT_KEPT_BEFORE = ("highest_concurrency", "profile", "processor", "source_digest")
"""Those of which they do not tell what they were."""
ON_THE_SAME = (
    *("machine", "processor", "python", "turbospec", "source_digest"),
    *("torch", "transformers", "numpy", "numba"),
)
"""Of the `surroundings`, those that a run that is resumed shares."""
TARGET_MISSED = 1
"""Exit status where a target is missed beyond noise; a user's mistake is 2."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a benchmark writes. All places are checked before anything is measured."""

    results: Path
    report: Path
    pictures: Path | None

    @classmethod
    def check(
        cls,
        results: Path | None,
        report: Path | None,
        pictures: Path | None,
        traces: Path | None,
        resumed: Results | None,
        inputs: Iterable[Path | None],
    ) -> Outputs:
        """Choose the places that are not given, and check that all can be written.

        Args:
            results: as given; when absent those that are resumed, else a new file under `runs/`.
            report: as given; when absent beside the results.
            pictures: folder, as given.
            traces: folder, as given.
            resumed: results of an interrupted run, which may be completed in place.
            inputs: files that the benchmark reads.

        Raises:
            UserError: one of them cannot be written or is an input.
        """
        if results is None:
            new = Path("runs") / f"bench-{datetime.now():%Y%m%d-%H%M%S}.json"
            results = new if resumed is None else resumed.path
        report = report or results.parent / f"{results.stem}.html"
        # Folders first: a file in the place of one is then refused.
        for folder in (pictures, traces):
            if folder is not None:
                check_folder(folder)
        check_outputs(results, report, inputs=inputs)
        return cls(results, report, pictures)

    def open_results(
        self, resumed: Results | None, meta: dict[str, Any], compared: Sequence[str], inputs: Mapping[str, Path]
    ) -> Results:
        """New results, or those of an interrupted run.

        Args:
            resumed: results of the interrupted run.
            meta: of this run, `surroundings` not included.
            compared: fields of `meta` in which a run that is resumed must be the same, as in `ON_THE_SAME`.
            inputs: files by name, whose contents must be the same too.

        Raises:
            UserError: the results to resume were measured in another way.
        """
        from turbospec_bench.inputs import digests
        from turbospec_bench.results import Results

        meta, contents = meta | surroundings(), digests(inputs)
        if resumed is None:
            keep_earlier(self.results)
            return Results(self.results, meta | {"inputs": contents})
        earlier = ADDED_LATER | resumed.meta
        known = [name for name in (*compared, *ON_THE_SAME) if name in earlier or name not in NOT_KEPT_BEFORE]
        if differing := [name for name in known if earlier.get(name) != meta[name]]:
            others = " and another ".join(name.replace("_", " ") for name in differing)
            raise UserError(f"{resumed.path}: was measured with another {others}; start a new one")
        before: dict[str, str] = resumed.meta.get("inputs", {})
        if changed := [name for name, content in contents.items() if before.get(name, content) != content]:
            raise UserError(f"{resumed.path}: {changed[0]} has changed since; start a new one")
        if self.results != resumed.path:
            keep_earlier(self.results)
        rounds = max(meta["rounds"], resumed.meta.get("rounds", 0))
        shared = {name: meta[name] for name in ON_THE_SAME} | resumed.meta
        return Results(self.results, shared | {"rounds": rounds, "inputs": before | contents}, resumed.rows)


def show_configuration(
    results: Results, configuration: Configuration, compare: Callable[[Sequence[Row]], str | None]
) -> None:
    """Print a configuration's table, and under it what `compare` says of its rows."""
    rows = results.of_configuration(configuration)
    shown = table(f"{configuration.name}: medians of {rows[0]['rounds']} rounds", *COLUMNS)
    for row in rows:
        shown.add_row(*table_line(row))
    for column in shown.columns[:3]:
        column.no_wrap = True
    stdout.print(shown)
    if disturbed := disturbance(rows):
        stdout.print(disturbed)
    if (line := compare(rows)) is not None:
        stdout.print(line)


def conclude(results: Results, outputs: Outputs) -> None:
    """Say what the run shows, and write the results, the report and the pictures; nothing without any row.

    Raises:
        UserError: a file cannot be written.
    """
    from turbospec_bench.reports.benchmark import write_pictures, write_report
    from turbospec_bench.summary import findings

    if not results.rows:
        return
    results.save()
    for finding in findings(results.rows):
        stdout.print(Text.assemble((finding.topic, "bold"), f": {finding.text}"))
    write_report(outputs.report, results.meta, results.rows)
    if outputs.pictures is not None:
        write_pictures(outputs.pictures, results.rows)
    stdout.print(f"results: {results.path}\nreport:  {outputs.report}", soft_wrap=True)


def conclude_or_stop(
    results: Results, outputs: Outputs, stopped: BaseException | None, finished: int, planned: int
) -> None:
    """`conclude`; of a run that was stopped, say how far it came and how to go on, and raise what stopped it.

    Args:
        results, outputs: as for `conclude`.
        stopped: by what; None for a complete run.
        finished: configurations that are complete.
        planned: configurations in all.

    Raises:
        UserError: as `conclude`, of a complete run.
    """
    try:
        conclude(results, outputs)
    except UserError as error:
        if stopped is None:
            raise
        stderr.print(str(error), soft_wrap=True)
    if stopped is None:
        return
    if results.rows:
        stderr.print(
            f"{finished} of {planned} configurations are finished; --resume {results.path} completes the run",
            soft_wrap=True,
        )
    else:
        stderr.print("no round is finished; there are no results to resume from")
    raise stopped


def show_targets(verdicts: Sequence[Verdict]) -> int:
    """Print whether each target is met, and return the exit status that says so."""
    for verdict in verdicts:
        word, style = VERDICTS[verdict.met]
        noise = "few rounds" if verdict.too_few_rounds else "within noise" if verdict.within_noise else ""
        stdout.print(Text.assemble((f"{word:<12}", style), f"{noise:<14}{verdict.target}: ", (verdict.figures, "bold")))
    return TARGET_MISSED if any(verdict.surely_missed for verdict in verdicts) else 0


def surroundings() -> dict[str, Any]:
    """When, on what and by which command a benchmark ran."""
    from turbospec_bench.machine import PACKAGES, processor, source_digest

    names = ("turbospec", "torch", "transformers", "numpy", "numba")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["turbospec", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "processor": processor(),
        "source_digest": source_digest(*PACKAGES),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }
