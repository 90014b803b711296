"""The command line, run in this process."""

from __future__ import annotations

import sys

import pytest

from turbospec import cli


def run_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """Its exit code."""
    monkeypatch.setattr(sys, "argv", ["turbospec", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def assert_one_line(error: str, words: str = "") -> None:
    """That a user's mistake was told in one line with these words in it, and without a traceback."""
    assert error.startswith("error: ")
    assert words in error
    assert error.count("\n") == 1, error
