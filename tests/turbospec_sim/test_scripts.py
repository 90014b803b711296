"""The scripts beside the packages tell a user's mistakes without a traceback."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.turbospec.command import assert_one_line
from turbospec_sim.scenario_file import read_scenario

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


@pytest.mark.parametrize(("arrivals", "options"), [("closed", []), ("closed", ["--few-blocks"]), ("poisson", [])])
def test_random_scenarios_are_the_same_again(
    arrivals: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, written = "simulations/random_scenarios.py", list[str]()
    for folder in (tmp_path / "one", tmp_path / "two"):
        arguments = [str(folder), "--number", "3", "--seed", "5", "--arrivals", arrivals, *options]
        monkeypatch.setattr("sys.argv", [script, *arguments])
        runpy.run_path(str(ROOT / script), run_name="__main__")
        files = sorted(folder.iterdir())
        assert [file.name for file in files] == [f"{arrivals}-{seed:04d}.yaml" for seed in (5, 6, 7)]
        written.append("".join(file.read_text(encoding="utf-8") for file in files))
        for file in files:
            read_scenario(file)
    assert written[0] == written[1]


@pytest.mark.parametrize("script", ["simulations/memory_given_back.py", "simulations/lost_capacity.py"])
def test_counts_are_above_0(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    mistake(script, ["--seeds", "0"], monkeypatch)
    assert capsys.readouterr().err.endswith("argument --seeds: must be a whole number above 0 (got 0)\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["{folder}", "--seed", "-1"], "argument --seed: must be a whole number of 0 or more"), (["{file}"], "{file}")],
)
def test_random_scenarios_name_a_mistake(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    names = {"folder": str(tmp_path / "folder"), "file": str(tmp_path / "file")}
    mistake("simulations/random_scenarios.py", [each.format(**names) for each in arguments], monkeypatch)
    assert words.format(**names) in capsys.readouterr().err.splitlines()[-1]
