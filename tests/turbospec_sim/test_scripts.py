"""The scripts beside the packages tell a user's mistakes without a traceback."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.turbospec.command import assert_one_line

ROOT = Path(__file__).parents[2]


def mistake(script: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script that ends with exit code 2."""
    monkeypatch.setattr("sys.argv", [script, *arguments])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("simulations/memory_given_back.py", ["--scenario", "nosuch"], "no scenario is called `nosuch`"),
        ("simulations/memory_given_back.py", ["--scenario", "healthy-eagle3", "--cache", "0"], "kv_cache_tokens"),
        ("benchmarks/memory_given_back.py", ["--target", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line(
    script: str,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mistake(script, arguments, monkeypatch)
    assert_one_line(capsys.readouterr().err, words)


@pytest.mark.parametrize("script", ["simulations/memory_given_back.py", "simulations/lost_capacity.py"])
def test_counts_are_above_0(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    mistake(script, ["--seeds", "0"], monkeypatch)
    assert capsys.readouterr().err.endswith("argument --seeds: must be a whole number above 0 (got 0)\n")
