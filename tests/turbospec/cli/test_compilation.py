from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest

from turbospec.cli import compilation
from turbospec.cli.compilation import MESSAGE, say_when_compiling
from turbospec.runtime import kernels


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """What is called when a kernel is compiled in this process."""
    begun: list[Callable[[], None]] = []
    monkeypatch.setattr(kernels, "on_first_compilation", begun.append)
    compilation._say.cache_clear()
    yield begun
    compilation._say.cache_clear()


def test_a_compilation_is_said_once_and_on_stderr(
    begin: list[Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    say_when_compiling()
    assert capsys.readouterr().err == ""
    for _ in range(2):
        begin[0]()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{MESSAGE}\n")


@pytest.mark.parametrize("cached", [True, False])
def test_workers_compile_where_no_kernel_is_on_disk(
    cached: bool,
    begin: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kernels, "kernels_are_cached", lambda package: cached)
    say_when_compiling(2)
    assert capsys.readouterr().err == ("" if cached else f"{MESSAGE}\n")
    begin[0]()
    assert MESSAGE in capsys.readouterr().err or not cached


@pytest.mark.parametrize("command", ["simulate", "capacity", "calibrate", "replay", "tune", "generate", "profile"])
def test_every_command_that_compiles_says_so(command: str) -> None:
    function = getattr(import_module(f"turbospec.cli.{command}"), command)
    assert "say_when_compiling(" in inspect.getsource(function)
