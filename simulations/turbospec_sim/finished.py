"""Finished runs of a sweep or a search, kept in a results file, from which an interrupted one goes on.

While the work is unfinished, the file's rows are those of the finished runs. A row's `run_id` says what defines its
run, so that the same run, asked for again, is not simulated again. Rows have all digits: a search that is resumed takes
the same turns.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from turbospec.errors import UserError
from turbospec.files.reading import MEBIBYTE, is_finite_number, read_bytes, read_json
from turbospec.files.results_file import plain, save
from turbospec.policy import find_policy, read_policy
from turbospec_sim.backends import Workers
from turbospec_sim.run import BEST_STATIC, FIELDS, ORACLE, Run
from turbospec_sim.scenario import Scenario

RUN_ID = "run_id"
UNFINISHED = "unfinished"
"""Entry of the `meta` of a file whose rows are only those of finished runs."""
FIGURES_ONLY = tuple(name for name in FIELDS if name != "timeline")
"""Fields that a search keeps."""
SAVE_SECONDS = 5.0
"""Least time between two writes of the file."""
SAVE_SHARE = 0.05
"""Most of the time that is spent on writing it."""
MAX_BYTES = 1024 * MEBIBYTE
RUN_ONLY = {"description", "policy", "rates", "seed"}
"""Fields of a scenario that say which of its runs are simulated, and change none."""
NAMED_DIFFERENCES = 3
"""Differences that an error names."""

Row = dict[str, Any]


class FinishedRuns:
    """Rows of finished runs by what defines a run.

    Args:
        path: results file; None to keep them in memory only.
        meta: settings of all runs, for the file.
        rows: of an interrupted run.
        fields: of a row that are kept.
    """

    def __init__(
        self,
        path: Path | None = None,
        meta: Mapping[str, Any] | None = None,
        rows: Sequence[Row] = (),
        fields: Sequence[str] = FIELDS,
    ) -> None:
        self.path = path
        self._meta = dict(meta or {})
        self._fields = fields
        self._rows: dict[str, Row] = {row[RUN_ID]: row for row in rows}
        self._saved = len(self._rows)
        self._next_save = -math.inf
        self._policies: dict[str, Any] = {}
        # With the scenario, so that its id stays its own.
        self._scenarios: dict[int, tuple[Scenario, str]] = {}

    @classmethod
    def resumed(cls, path: Path, meta: Mapping[str, Any], fields: Sequence[str] = FIELDS) -> FinishedRuns:
        """Those of an interrupted run, in its results file.

        Args:
            path: the file.
            meta: settings of the run that goes on: its `command` must have written the file, and its `settings` must
                be the same, where both have them.
            fields: as in the constructor.

        Raises:
            UserError: there is no such file, another command wrote it, or its settings are others.
        """
        command = meta["command"]
        hint = f"name a file that `turbospec {command} --json` wrote"
        document = read_json(path, "results file", limit=MAX_BYTES, hint=hint)
        found = document.get("meta") if isinstance(document, dict) else None
        rows = document.get("rows") if isinstance(document, dict) else None
        if not isinstance(found, dict) or found.get("command") != command or not isinstance(rows, list):
            raise UserError(f"{path}: not a results file of `turbospec {command}`; {hint}")
        if not found.get(UNFINISHED) and not any(isinstance(row, dict) and RUN_ID in row for row in rows):
            raise UserError(f"{path}: is finished; there is nothing to resume")
        if not all(_is_row(row, fields) for row in rows):
            raise UserError(f"{path}: a row is not one that `turbospec {command}` wrote; start a new run")
        if differing := [*_differences("", found.get("settings"), plain(meta["settings"], None))]:
            named = " and another ".join(f"`{name}`" for name in differing[:NAMED_DIFFERENCES])
            raise UserError(f"{path}: was simulated with another {named}; use the same, or start a new run")
        return cls(path, meta, rows, fields)

    def refuse_others(self, runs: Sequence[Run]) -> None:
        """Check that every finished run is one of `runs`.

        Raises:
            UserError: one is not.
        """
        wanted = {self._id(run) for run in runs}
        for identity, row in self._rows.items():
            if identity not in wanted:
                raise UserError(
                    f"{self.path}: has a run of `{row['scenario']}` under `{row['policy']}` at {row['request_rate']} "
                    f"requests/s with seed {row['seed']}, which is not asked for; ask for it too, or start a new run"
                )

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, run: Run) -> Row | None:
        """A copy of the row of a run; None where it is not finished."""
        found = self._rows.get(self._id(run))
        return None if found is None else dict(found)

    def add(self, run: Run, row: Mapping[str, Any]) -> Row:
        """Keep the row of a finished run, and write the file if that is due; returns the row as `get` does."""
        identity = self._id(run)
        kept = {name: row[name] for name in self._fields} | {RUN_ID: identity}
        if run.settings is not None:
            kept["settings"] = run.settings.model_dump(mode="json")
        self._rows[identity] = kept
        if time.monotonic() >= self._next_save:
            self.save()
        return dict(self._rows[identity])

    def save(self) -> None:
        """Write the file, where there is one and it lacks a row."""
        if self.path is None or self._saved == len(self._rows):
            return
        number, began = len(self._rows), time.monotonic()
        save(self.path, self._meta | {UNFINISHED: True}, [*self._rows.values()], digits=None)
        ended = time.monotonic()
        self._saved, self._next_save = number, ended + max(SAVE_SECONDS, (ended - began) / SAVE_SHARE)

    def _id(self, run: Run) -> str:
        """The same for two runs exactly if they have the same name, scenario, policy, rate and seed."""
        if run.settings is not None:
            policy = run.settings.model_dump(mode="json")
        else:
            if run.policy not in self._policies:
                self._policies[run.policy] = policy_settings(run.policy)
            policy = self._policies[run.policy]
        if id(run.scenario) not in self._scenarios:
            text = json.dumps(scenario_settings(run.scenario), sort_keys=True)
            self._scenarios[id(run.scenario)] = run.scenario, text
        _, scenario = self._scenarios[id(run.scenario)]
        parts = [run.name, scenario, run.policy, policy, run.rate, run.seed, run.fixed]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


def rows_of(
    function: Callable[[Run], Row], runs: Sequence[Run], workers: Workers, finished: FinishedRuns | None = None
) -> Iterator[Row]:
    """What a function returns for runs, in their order, yielded as they are finished.

    Args:
        function: returns the row of a run.
        runs: its arguments.
        workers: call it in parallel.
        finished: runs for which it is not called; the others are added, each as soon as it is finished.
    """
    known = (None if finished is None else finished.get(run) for run in runs)
    rows = {place: row for place, row in enumerate(known) if row is not None}
    missing = [place for place in range(len(runs)) if place not in rows]
    yielded = 0
    with closing(workers.map(function, [runs[place] for place in missing])) as results:
        for number, row in results:
            place = missing[number]
            rows[place] = row if finished is None else finished.add(runs[place], row)
            while yielded in rows:
                yield rows.pop(yielded)
                yielded += 1
    while yielded in rows:
        yield rows.pop(yielded)
        yielded += 1


def scenario_settings(scenario: Scenario) -> dict[str, Any]:
    """What of a scenario defines its runs: its fields, and digests of the files that it refers to.

    Raises:
        UserError: a file cannot be read.
    """
    digests = {str(path): hashlib.sha256(read_bytes(path, "file of a scenario")).hexdigest() for path in scenario.files}
    return scenario.model_dump(mode="json", exclude=RUN_ONLY) | {"files": digests}


def policy_settings(name: str) -> Any:
    """Settings of a policy, given by name or file; None for `oracle` and `best_static`.

    Raises:
        UserError: there is no such policy, or its file is wrong.
    """
    if name in (ORACLE, BEST_STATIC):
        return None
    return read_policy(find_policy(name)).model_dump(mode="json")


def _differences(name: str, before: Any, now: Any) -> Iterator[str]:
    """Dotted names of the entries in which two documents differ; entries that only one of them has are left out."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before:
            if key in now:
                yield from _differences(f"{name}.{key}" if name else key, before[key], now[key])
    elif before != now:
        yield name or "version"


def _is_row(row: Any, wanted: Collection[str]) -> bool:
    """Whether a value from a file is a row with these fields."""
    return (
        isinstance(row, dict)
        and isinstance(row.get(RUN_ID), str)
        and set(wanted) <= row.keys()
        and all(_is_field(name, row[name]) for name in wanted)
    )


def _is_field(name: str, value: Any) -> bool:
    match name:
        case "scenario" | "policy" | "emit":
            return isinstance(value, str)
        case "refused":
            return value is None or isinstance(value, str)
        case "request_rate":
            return value == "inf" or is_finite_number(value)
        case "slo_met":
            return value is None or isinstance(value, bool)
        case "seed" | "token_goodput" | "request_goodput" | "wall_seconds":
            return is_finite_number(value)
        case "timeline":
            return isinstance(value, dict) and all(_is_series(series) for series in value.values())
        case _:
            return value is None or is_finite_number(value)


def _is_series(values: Any) -> bool:
    return isinstance(values, list) and all(value is None or is_finite_number(value) for value in values)
