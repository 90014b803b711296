from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.turbospec.command import assert_one_line
from tests.turbospec.command import run_command as run
from tests.turbospec_sim.interruption import interrupt_after, rows_of
from tests.turbospec_sim.scenarios import document
from turbospec.policy import read_policy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A server where every draft is right, so that the longest draft is the best."""
    path = tmp_path / "mine.yaml"
    made = document(
        workload__requests=10,
        rates=[2.0],
        chat__acceptance={"process": "iid", "rate": 1.0},
        chat__prompt_tokens={"distribution": "uniform", "low": 10, "high": 30},
        chat__output_tokens={"distribution": "constant", "tokens": 61},
    )
    path.write_text(json.dumps(made, indent=1))
    return path


SEARCH = ["--policy", "static-1", "--search", "draft_length=0:5", "--objective", "mean_tpot_ms"]
QUICK = ["--trials", "8", "--seeds", "1", "--held-out", "3"]


def test_the_best_settings_are_written_as_a_policy_that_is_valid(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "tuned.yaml"
    assert run(["tune", str(file), *SEARCH, *QUICK, "--write", str(made)], monkeypatch) == 0
    shown = capsys.readouterr().out
    for words in ("draft_length: 5", "default", "tuned", "held-out seeds", f"policy: {made}"):
        assert words in shown
    assert "noise" not in shown
    text = made.read_text()
    assert text.startswith("# The policy `static-1`, tuned for mine")
    assert max(map(len, text.splitlines())) <= 120
    assert read_policy(made).model_dump()["draft_length"] == 5
    assert run(["policy", "check", str(made)], monkeypatch) == 0
    assert not list(tmp_path.glob("*.part"))
    again = tmp_path / "again.yaml"
    assert run(["tune", str(file), *SEARCH, *QUICK, "--write", str(again)], monkeypatch) == 0
    assert again.read_text() == text


def test_where_nothing_is_gained_that_is_said(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "tuned.yaml"
    arguments = ["--policy", "heuristic", "--search", "start=6:9", *QUICK, "--write", str(made)]
    assert run(["tune", str(file), *arguments], monkeypatch) == 0
    assert "No settings tried were better" in capsys.readouterr().out
    assert "No settings tried were better" in made.read_text()
    assert read_policy(made).model_dump()["start"] == 20


def test_a_file_is_replaced_only_when_asked_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "tuned.yaml"
    made.write_text("mine")
    arguments = ["tune", str(file), *SEARCH, *QUICK, "--write", str(made)]
    assert run(arguments, monkeypatch) == 2
    assert "the file exists" in capsys.readouterr().err
    assert made.read_text() == "mine"
    assert run([*arguments, "--overwrite"], monkeypatch) == 0
    assert f"policy (replaced): {made}" in capsys.readouterr().out
    assert made.read_text() != "mine"


def test_an_interrupted_search_is_completed_to_the_same_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, again = tmp_path / "tuned.yaml", tmp_path / "again.yaml"
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    arguments = ["tune", str(file), *SEARCH, *QUICK]
    assert run([*arguments, "--write", str(made), "--json", str(whole)], monkeypatch) == 0
    arguments += ["--write", str(again)]
    with monkeypatch.context() as patched:
        interrupt_after(3, patched)
        assert run([*arguments, "--json", str(part)], patched) == 130
    said = f"3 runs are finished; --resume {part} completes the run\ninterrupted\n"
    assert capsys.readouterr().err.endswith(said)
    assert not again.exists()
    assert len(rows_of(part)) == 3
    assert run([*arguments, "--resume", str(part), "--trials", "9"], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, f"{part}: was simulated with another `trials`; use the same")
    with monkeypatch.context() as patched:
        interrupt_after(10, patched)  # 13 runs in all, of which 3 are finished
        assert run([*arguments, "--resume", str(part)], patched) == 0
    assert again.read_text() == made.read_text()
    assert rows_of(part) == rows_of(whole)
    lengths = {row["settings"]["draft_length"] for row in rows_of(part)}
    assert lengths == {0, 1, 2, 3, 4, 5}


def test_inputs_are_not_overwritten(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", str(file), *SEARCH, *QUICK, "--write", str(file), "--overwrite"], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, f"{file}: is read by this command")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["drfit", "--write", "OUT"], "no scenario is called `drfit`"),
        (["drift", "--write", "OUT", "--policy", "adaptiv"], "did you mean `adaptive`?"),
        (["drift", "--write", "OUT", "--objective", "speed"], "--objective speed: "),
        (["drift", "--write", "OUT", "--search", "probe_share=1"], "--search probe_share=1: "),
        (["drift", "--write", "OUT", "--policy", "off"], "nothing to tune"),
        (["drift", "--write", "/dev/null/out.yaml"], "/dev/null/out.yaml: cannot be written"),
        (["drift", "--write", ".", "--overwrite"], ".: this is a folder; name a file in it"),
        (["drift", "--write", "OUT", "--trials", "2"], "--trials"),
        (["drift", "--write", "OUT", "--rates", "0"], "--rates 0: "),
        (["drift"], "--write"),
        (["drift", "--write", "OUT", "--trials", "1000000000"], "--trials"),
        (["drift", "--write", "OUT", "--trials", "90000", "--held-out", "10000"], "requests in all: roughly"),
        (["drift", "--write", "OUT", "--search", "probe_share=1e-310:1e300:log"], "--search probe_share=1e-310"),
        (
            ["drift", "--write", "OUT", "--set", "server.kv_cache_tokens=16", "--set", "workload.requests=20"],
            "no request can be served: 20 of 20 requests do not fit the KV cache of 16 tokens",
        ),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.yaml"
    assert run(["tune", *[str(out) if word == "OUT" else word for word in arguments]], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert not out.exists()
