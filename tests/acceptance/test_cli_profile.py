"""`turbospec profile` and what `turbospec generate` makes of its file, as a user runs them on a tiny pair."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.turbospec_engine.harness import DEVICE, build, byte_level_tokenizer
from turbospec import cli

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a target, and its profile in float32 as `profile.json`."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = byte_level_tokenizer()
    build("llama", len(tokenizer), seed=0).save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        assert turbospec(monkeypatch, "profile", "--dtype", "float32") == 0
    yield folder
    torch.set_num_threads(threads)


def turbospec(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> int | str | None:
    pair = ("--target", "target", "--drafter", "ngram", "--device", DEVICE)
    monkeypatch.setattr(sys, "argv", ["turbospec", command, *pair, *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def remarks(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, *arguments: str) -> list[str]:
    """Lines on stderr of a `generate` with the folder's profile."""
    monkeypatch.chdir(folder)
    capsys.readouterr()
    status = turbospec(monkeypatch, "generate", "the cat", "--max-tokens", "4", "--json", *arguments)
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert json.loads(shown.out)["output_tokens"] <= 4
    return shown.err.splitlines()


def test_a_profile_says_what_was_measured(folder: Path) -> None:
    meta = json.loads((folder / "profile.json").read_text())["meta"]
    assert {name: meta[name] for name in ("target", "drafter", "dtype")} == {
        "target": "target",
        "drafter": "ngram",
        "dtype": "float32",
    }
    assert meta["device"]
    assert meta["threads"] >= 1


def test_a_profile_that_fits_is_used_without_a_remark(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    target = str(folder / "target")
    options = ("--profile", "profile.json", "--dtype", "float32", "--target", target)
    assert remarks(folder, monkeypatch, capsys, *options) == []


def test_a_profile_of_other_conditions_is_used_with_one_line_of_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (line,) = remarks(folder, monkeypatch, capsys, "--profile", "profile.json", "--drafter", "target")
    assert line == (
        "warning: profile.json was measured with drafter ngram, not target, dtype float32, not bfloat16; "
        "measure again with `turbospec profile`"
    )


def test_an_unknown_type_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(folder)
    assert turbospec(monkeypatch, "profile", "--dtype", "int3") == 2
    assert capsys.readouterr().err == "error: dtype='int3' is unknown; use one of float32, bfloat16, float16\n"
