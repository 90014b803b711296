"""Interruptions of commands that simulate, and the rows that they keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turbospec_sim.run import Run, simulate


def interrupt_after(runs: int, monkeypatch: pytest.MonkeyPatch, where: str = "turbospec_sim.sweep.simulate") -> None:
    """Interrupt the simulation of the run that follows so many."""
    left = [runs]

    def interrupted(run: Run) -> dict[str, Any]:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return simulate(run)

    monkeypatch.setattr(where, interrupted)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a results file without what differs from time to time."""
    rows = json.loads(path.read_text())["rows"]
    for row in rows:
        row.pop("wall_seconds", None)
    return rows
