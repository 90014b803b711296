"""Progress where stderr is not a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from turbospec.cli import console


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.05)


def lines_of(capsys: pytest.CaptureFixture[str], least: int) -> list[str]:
    """Wait for lines on stderr."""
    lines: list[str] = []
    deadline = time.monotonic() + 10
    while len(lines) < least and time.monotonic() < deadline:
        time.sleep(0.02)
        lines += capsys.readouterr().err.splitlines()
    return lines


def test_lines_come_while_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress() as bar:
        task = bar.add_task("loading the models", total=None)
        assert all(line.startswith("loading the models: 0:00:0") for line in lines_of(capsys, 2))
        bar.update(task, description="code/good/c1 off", total=12, completed=3)
        assert lines_of(capsys, 2)[-1].startswith("code/good/c1 off: 3 of 12, 0:00:0")
        assert "left" in lines_of(capsys, 2)[-1]
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_quick_work_prints_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 60.0)
    with console.progress() as bar:
        bar.update(bar.add_task("runs", total=1), advance=1)
    assert capsys.readouterr().err == ""


def test_the_interval_keeps_the_promise_of_fifteen_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert console.LINE_SECONDS < 15


@pytest.mark.parametrize("size", ["0", "1", "-3", "abc", "", "²", "9" * 5000])
def test_sizes_of_a_terminal_that_cannot_be_are_not_used(size: str) -> None:
    script = "from turbospec.cli import console; console.stdout.print('x' * 120)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"COLUMNS": size, "LINES": size},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "x" * 120 + "\n"), done.stderr
