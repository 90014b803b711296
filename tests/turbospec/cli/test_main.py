from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

from tests.turbospec.command import assert_one_line, run_command
from turbospec import UserError, cli


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_lists_every_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command}" in shown for command in cli.COMMANDS)


ENGINE = {"torch", "transformers", "matplotlib"}


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], ENGINE | {"numba", "scipy"}),
        (["generate", "--help"], ENGINE | {"numba", "scipy"}),
        (["trace", "--help"], ENGINE | {"numba", "scipy"}),
        (["profile", "--help"], ENGINE | {"numba", "scipy"}),
        (["bench", "--help"], ENGINE),
        (["simulate", "--help"], ENGINE | {"numba", "scipy", "joblib", "turbospec_sim"}),
        (["policy", "show", "adaptive"], ENGINE),
    ],
)
def test_nothing_is_imported_that_the_command_does_not_need(arguments: list[str], unwanted: set[str]) -> None:
    script = (
        "import sys\n"
        "from turbospec import cli\n"
        f"sys.argv = ['turbospec', *{arguments!r}]\n"
        "try: cli.main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"assert not {unwanted!r} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["--nonsense"], ["generate"], ["generate", "hello", "--max-tokens", "many"]]
)
def test_usage_mistakes_are_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments, monkeypatch) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert_one_line(shown.err)


def command_that_raises(error: BaseException) -> Callable[[], NoReturn]:
    def command() -> NoReturn:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("models: no such\n  folder"), 2, "error: models: no such folder\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            2,
            "error: torch is not installed; get the engine with: pip install 'turbospec[engine]'\n",
        ),
    ],
)
def test_what_ends_a_command_early_is_one_line(
    error: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("turbospec.cli.trace.trace", command_that_raises(error))
    assert run_command(["trace"], monkeypatch) == status
    assert capsys.readouterr().err.lstrip("\n") == line


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'oops'", name="oops"), ZeroDivisionError()])
def test_our_own_bugs_keep_their_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbospec.cli.trace.trace", command_that_raises(error))
    monkeypatch.setattr(sys, "argv", ["turbospec", "trace"])
    with pytest.raises(type(error)):
        cli.main()
