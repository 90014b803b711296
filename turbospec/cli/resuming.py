"""Finished runs of a command that simulates: kept when it is interrupted, and completed with --resume."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turbospec.cli.console import stderr
from turbospec.errors import UserError

if TYPE_CHECKING:
    from turbospec_sim.cost import Cost
    from turbospec_sim.finished import FinishedRuns

Resume = Annotated[
    Path | None, typer.Option(help="Results of an interrupted run of the same command, to be completed.")
]


def finished_runs(
    json: Path | None, resume: Path | None, meta: Mapping[str, Any], fields: Sequence[str] | None = None
) -> FinishedRuns:
    """The finished runs of a command: none, or those of an interrupted one.

    Args:
        json: where results go; None for nowhere.
        resume: results of the interrupted command, where these go too.
        meta: settings of all runs; see `FinishedRuns.resumed`.
        fields: of rows that are kept; None for all of a run's.

    Raises:
        UserError: the file to resume is not one of this command with these settings, or the file for the results is
            there already and cannot be kept.
    """
    from turbospec.files.results_file import keep_earlier
    from turbospec_sim.finished import FinishedRuns
    from turbospec_sim.run import FIELDS

    fields = FIELDS if fields is None else fields
    if json is not None and resume is None:
        keep_earlier(json)
    return FinishedRuns(json, meta, (), fields) if resume is None else FinishedRuns.resumed(resume, meta, fields)


def results_file(json: Path | None, resume: Path | None) -> Path | None:
    """The file that results go to.

    Raises:
        UserError: both are given.
    """
    if json is not None and resume is not None:
        raise UserError("--json and --resume: --resume goes on with its own file; leave --json out")
    return json or resume


def say_cost(cost: Cost, jobs: int, *, at_most: bool = False) -> None:
    """Say beforehand what more than a minute of work costs.

    Args:
        cost: of the work.
        jobs: processes that share it.
        at_most: whether the work may end earlier.

    Raises:
        UserError: the cost is absurd.
    """
    cost.check(jobs)
    words = cost.said(jobs)
    if words is not None:
        stderr.print(f"{'at most ' if at_most else ''}{words}", soft_wrap=True)


@contextmanager
def kept(finished: FinishedRuns, planned: int | None = None) -> Generator[None]:
    """While work goes on: an interruption or an error keeps what is finished, and says how to go on.

    Args:
        finished: the finished runs.
        planned: number of runs; None where it is not known.
    """
    try:
        yield
    except KeyboardInterrupt:
        finished.save()
        _say_unfinished(finished, planned)
        raise
    except BaseException:
        finished.save()
        raise


def _say_unfinished(finished: FinishedRuns, planned: int | None) -> None:
    runs = f"of {planned} runs" if planned is not None else "run" if len(finished) == 1 else "runs"
    number = f"{len(finished)} {runs} {'is' if len(finished) == 1 else 'are'} finished"
    if not len(finished):
        said = "no run is finished; there are no results to resume from"
    elif finished.path is None:
        said = f"{number} and nothing is kept; with --json FILE, --resume FILE would complete them"
    else:
        said = f"{number}; --resume {finished.path} completes the run"
    stderr.print(said, soft_wrap=True)
