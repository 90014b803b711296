from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.turbospec.command import assert_one_line, run_command
from turbospec import UserError
from turbospec.cli.application import COMMANDS


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_lists_every_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments, monkeypatch) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command}" in shown for command in COMMANDS)


ENGINE = {"torch", "transformers", "matplotlib"}


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], ENGINE | {"numba", "scipy"}),
        (["generate", "--help"], ENGINE | {"numba", "scipy"}),
        (["trace", "--help"], ENGINE | {"numba", "scipy"}),
        (["profile", "--help"], ENGINE | {"numba", "scipy"}),
        (["bench", "--help"], ENGINE),
        (["simulate", "--help"], ENGINE | {"numba", "scipy", "turbospec_sim"}),
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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["policy"], "error: Missing command. --help lists options and arguments.\n"),
        (["selftest"], "error: Missing command. --help lists options and arguments.\n"),
        (["polcy"], "error: No such command 'polcy'. Did you mean 'policy'? --help lists options and arguments.\n"),
    ],
)
def test_a_missing_or_misspelt_command_is_said_to_be_one(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments, monkeypatch) == 2
    assert capsys.readouterr().err == line


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
            ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"),
            2,
            "error: torch is not installed; in a clone of TurboSpec get the engine with: pip install '.[engine]'\n",
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


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'oops'", name="oops"), ZeroDivisionError(), Unspeakable()]
)
def test_a_fault_of_ours_is_one_line_that_names_the_file_with_its_traceback(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("turbospec.cli.trace.trace", command_that_raises(error))
    assert run_command(["trace"], monkeypatch) == 70
    (written,) = tmp_path.iterdir()
    line = capsys.readouterr().err
    assert_one_line(line, f"a fault of turbospec, not of yours ({type(error).__name__}")
    assert line.endswith(f"{written}\n")
    assert "test_main.py" in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o600


def test_text_from_outside_is_neither_markup_nor_a_terminal_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = UserError("[/bold] [red]x \x1b[31m \x07 " + "y" * 5000)
    monkeypatch.setattr("turbospec.cli.trace.trace", command_that_raises(error))
    assert run_command(["trace"], monkeypatch) == 2
    line = capsys.readouterr().err
    assert line.startswith(r"error: [/bold] [red]x \x1b[31m \x07 yyy")
    assert len(line) < 1100


SCRIPT = "from turbospec.cli import main; main()"


@pytest.mark.parametrize(
    ("redirect", "status", "error"),
    [
        (">/dev/full", 2, "error: the output cannot be written (No space left on device); send stdout elsewhere\n"),
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("| true", 1, ""),
        ("oops 2> >(true)", 2, ""),
        ("oops 2>/dev/full", 2, ""),
    ],
)
def test_streams_that_are_full_closed_or_gone(redirect: str, status: int, error: str, tmp_path: Path) -> None:
    # The schema is longer than what a pipe or the stream buffers.
    command = f'{sys.executable} -c "{SCRIPT}" policy schema {redirect}'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (status, error)


def test_ctrl_c_while_the_command_line_is_imported_is_one_line() -> None:
    script = (
        "import signal, sys\n"
        "from turbospec.cli import main\n"
        "class Interrupted:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupted)\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_a_command_as_ctrl_c_does(number: signal.Signals) -> None:
    script = (
        "import os, sys\n"
        "from turbospec.cli.boundary import guarded\n"
        "def command():\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {number:d})\n"
        "        import time; time.sleep(20)\n"
        "    finally:\n"
        "        print('kept')\n"
        "sys.exit(guarded(command))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "kept\n", "interrupted\n")


def test_a_remark_to_a_reader_that_is_gone_ends_a_command_as_a_result_does() -> None:
    script = (
        "import sys\n"
        "from turbospec.cli.boundary import guarded\n"
        "from turbospec.cli.console import stderr\n"
        "sys.exit(guarded(lambda: stderr.print('a remark')))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", script], stderr=writing, env=buffered, check=False)
    os.close(writing)
    assert done.returncode == 1
