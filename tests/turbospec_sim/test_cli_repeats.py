from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.turbospec.command import assert_one_line
from tests.turbospec.command import run_command as run
from turbospec_sim.workload.repeats import Repeats

LINE = "value = compute(first, second) + offset\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    texts = [{"text": LINE * 2, "answer": f"x{number}y{number} " + LINE} for number in range(12)]
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return path


def test_prints_a_block_for_a_scenario(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["repeats", str(file), "--min-match", "2", "--min-repeat", "5"], monkeypatch) == 0
    printed = capsys.readouterr()
    fitted = Repeats.model_validate(yaml.safe_load(printed.out)["lookup"])
    assert fitted.min_match == 2
    assert fitted.repeat_tokens.low == 5
    assert "12 outputs of" in printed.err


def test_a_text_without_an_answer_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "code.jsonl"
    path.write_text(json.dumps({"text": LINE * 9}) + "\n")
    assert run(["repeats", str(path), "--prompt-tokens", "20"], monkeypatch) == 0
    assert "100% in 1 repeats" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        ({"answer": "x"}, [], ":1: has no `prompt` or `text`"),
        ([1], [], ":1: has no `prompt` or `text`"),
        ({"text": "short"}, [], "no output in it"),
        ({"text": "a b c", "answer": "d e f"}, [], "no repeat of 8 tokens"),
        ({"text": "a"}, ["--min-match", "8"], "--min-repeat 8: must be more than --min-match 8"),
    ],
)
def test_mistakes_are_one_line(
    line: Any,
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert run(["repeats", str(path), *options], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, words)


def test_a_tokenizer_that_cannot_be_read_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    os.mkfifo(pipe := tmp_path / "pipe")
    for tokenizer, words in (
        ("nowhere.json", "nowhere.json: no such tokenizer"),
        (str(pipe), "pipe: this is a pipe"),  # opening it would wait for its writer
        (str(file), f"--tokenizer {file}: cannot be read"),
    ):
        assert run(["repeats", str(file), "--tokenizer", tokenizer], monkeypatch) == 2
        assert_one_line(capsys.readouterr().err, words)


def test_a_missing_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["repeats", str(tmp_path / "none.jsonl")], monkeypatch) == 2
    assert_one_line(capsys.readouterr().err, "none.jsonl: no such file")
