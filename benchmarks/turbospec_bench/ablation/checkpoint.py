"""Rows of an ablation in a JSON file, to go on where an earlier command stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import turbospec
import turbospec_bench
import turbospec_sim
from turbospec.errors import UserError
from turbospec.files.reading import MEBIBYTE, open_file, read_json
from turbospec.files.results_file import save
from turbospec.policy import find_policy
from turbospec_sim.scenario_file import shipped_scenarios

PARTS = (
    "policy",
    "planning",
    "models",
    "exploration",
    "runtime",
    "observability/trace.py",
    "controller.py",
    "interface.py",
)
"""Of `turbospec`, what simulated rows depend on."""
OWN_PARTS = ("mechanisms", "cases.py", "profiles.py", "runs.py")
"""Of this package, the same."""
SECONDS_BETWEEN_SAVES = 20.0
Key = tuple[str, str, int]
Row = dict[str, Any]


def sources_digest(traces: Iterable[Path] = ()) -> str:
    """A digest of what a row depends on: code, shipped scenarios, the policy's file and recorded traces.

    Raises:
        UserError: a trace cannot be read.
    """
    product, simulator, bench = (
        Path(str(package.__file__)).parent for package in (turbospec, turbospec_sim, turbospec_bench)
    )
    digest = hashlib.sha256()
    own = [bench / "ablation" / part for part in OWN_PARTS]
    settings = [*shipped_scenarios().values(), find_policy("adaptive")]
    for place in (*(product / part for part in PARTS), simulator, *own, *settings):
        for source in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(source.name.encode() + source.read_bytes())
    for trace in traces:
        with open_file(trace, "decision trace") as file:
            while block := file.read(MEBIBYTE):
                digest.update(block)
    return digest.hexdigest()[:16]


class Checkpoint:
    """The rows so far, saved now and then.

    Args:
        path: JSON file; None to keep them in memory only.
        meta: settings that all rows depend on.

    Raises:
        UserError: the file cannot be read, or its rows depend on other settings.
    """

    def __init__(self, path: Path | None, meta: dict[str, Any]) -> None:
        self._path, self._meta = path, meta
        self._rows: dict[Key, Row] = {}
        self._saved = time.monotonic()
        if path is not None and path.exists():
            self._read(path)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    @property
    def rows(self) -> list[Row]:
        """All rows, sorted."""
        return [self._rows[key] for key in sorted(self._rows)]

    def add(self, row: Row) -> None:
        """Take in a finished row."""
        self._rows[_key(row)] = row
        if time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        """Write the file.

        Raises:
            UserError: it cannot be written.
        """
        self._saved = time.monotonic()
        if self._path is not None:
            save(self._path, self._meta, self.rows)

    def _read(self, path: Path) -> None:
        document = read_json(path, "ablation's JSON file")
        try:
            rows = {_key(row): row for row in document["rows"]}
            meta = dict(document["meta"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not rows of an ablation; name another file") from error
        if meta != self._meta:
            raise UserError(f"{path}: has rows of other sources, traces or --shorter; name another file with --json")
        self._rows = rows


def _key(row: Row) -> Key:
    return str(row["case"]), str(row["mechanism"]), int(row["seed"])
