"""The command line, run in this process."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import pytest

from turbospec import cli
from turbospec.cli.console import stdout


def run_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """Its exit code."""
    monkeypatch.setattr(sys, "argv", ["turbospec", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def close_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing ends the command, as rich does where stdout is a closed pipe."""

    def end(*_: Any, **__: Any) -> NoReturn:
        raise SystemExit(1)

    monkeypatch.setattr(stdout, "print", end)


def assert_one_line(error: str, words: str = "") -> None:
    """That a user's mistake was told in one line with these words in it, and without a traceback."""
    assert error.startswith("error: ")
    assert words in error
    assert error.count("\n") == 1, error
