"""Hostile command lines: a few that are made anew, and those that once failed.

They run in processes of their own, which fork; pytest's has threads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fuzz.case import Case, dump, load
from tests.fuzz.judge import faults
from tests.fuzz.replay import CORPUS, MAX_BYTES
from tests.fuzz.sandbox import Outcome

REPOSITORY = Path(__file__).parents[2]


def run(module: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{module}", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_some_hostile_command_lines() -> None:
    run("command_lines", "--cases", "25", "--seed", "23", "--jobs", "2", "--seconds", "45")


def test_command_lines_that_once_failed() -> None:
    run("replay", "--jobs", "2")


def test_the_corpus_is_small() -> None:
    assert all(path.stat().st_size <= MAX_BYTES for path in CORPUS.iterdir())
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < 1_000_000


def test_a_case_is_saved_and_loaded(tmp_path: Path) -> None:
    case = Case(
        "kind", ("simulate", "\udcff", "a" * 5000), {"x": b"\0", "y": "target", "z": None}, {"A": "b"}, stdout="full"
    )
    dump(case, tmp_path / "case.json")
    assert load(tmp_path / "case.json") == case


def found(code: int, err: str = "", out: str = "", *words: str) -> list[str]:
    outcome = Outcome(code, out, err, seconds=1.0, hung=False, left=[])
    return [fault.partition(":")[0] for fault in faults(Case("kind", words or ("simulate", "x")), outcome)]


def test_a_mistake_is_one_line() -> None:
    assert found(2, "error: x: no such file\n") == []
    assert found(2, "compiling kernels\nerror: x: no such file\n") == []
    assert found(2, "") == ["line"]
    assert found(2, "error: a\nerror: b\n") == ["line"]
    assert found(2, "error: a\nmore\n") == ["line"]


def test_other_endings_are_faults() -> None:
    assert found(1, 'Traceback (most recent call last):\n  File "x"\nValueError: y\n') == ["traceback"]
    assert found(70, "error: a fault of turbospec\n") == ["boundary"]
    assert found(-11) == ["crash"]
    assert found(3) == ["exit code"]
    assert found(0, "", '{"a": NaN}', "trace", "x", "--json") == ["json"]
    assert found(2, "error: http://u:hunter2secret@x does not answer\n") == ["secret"]


def test_what_misleads_is_a_fault() -> None:
    outcome = Outcome(0, "it does not answer", "", seconds=1.0, hung=False, left=[])
    case = Case("kind", ("policy", "check", "x.yaml"), must_fail="no engine can", must_not_say="does not answer")
    assert [fault.partition(":")[0] for fault in faults(case, outcome)] == ["accepted", "misleading"]


def test_what_was_there_must_stay(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("{}")
    outcome = Outcome(0, "", "", seconds=1.0, hung=False, left=[], folder=tmp_path)
    outcome.before = {"places/null": ("c", "259", "1"), "a.json": ("-", "1", "x"), "out.json": ("-", "1", "x")}
    outcome.after = {"places/null": ("-", "5", "y"), "a.json": ("-", "1", "y"), "out.json": ("-", "1", "y")}
    told = faults(Case("kind", ("simulate", "x", "--json", "out.json")), outcome)
    assert [fault.split()[1] for fault in told if fault.startswith("damage")] == ["places/null", "a.json"]
