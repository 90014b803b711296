"""Progress where stderr is not a terminal."""

from __future__ import annotations

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
