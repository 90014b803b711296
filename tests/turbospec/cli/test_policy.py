from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from turbospec.cli.policy import check, schema, show

STATIC = "version: 1\npolicy: static\ndraft_length: 3\n"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A valid policy file and an invalid one."""
    for name, text in (("good.yaml", STATIC), ("bad.yaml", STATIC + "draft_lenght: 1\n")):
        (tmp_path / name).write_text(text)
    return [tmp_path / "good.yaml", tmp_path / "bad.yaml"]


def test_valid_files_are_listed_with_their_policies(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    check(files[:1])
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"{files[0]}: valid (static)\n", "")


def test_every_file_is_checked_and_an_invalid_one_fails(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        check([files[1], files[0]])
    assert ended.value.exit_code == 2
    shown = capsys.readouterr()
    assert shown.out == f"{files[0]}: valid (static)\n"
    assert shown.err == f"{files[1]}:4: draft_lenght: unknown field; did you mean `draft_length`?\n"


def test_settings_are_shown_with_their_defaults(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    show(str(files[0]))
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    show(str(files[0]), as_json=True)
    settings = json.loads(capsys.readouterr().out)
    assert (settings["policy"], settings["draft_length"]) == ("static", 3)
    assert ["draft_length", "3"] in table
    assert ["guard.cooldown_steps", str(settings["guard"]["cooldown_steps"])] in table


def test_numbers_are_shown_as_the_file_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.yaml").write_text("version: 1\npolicy: adaptive\nprobe_share: 0.0123456789\n")
    show(str(tmp_path / "own.yaml"), as_json=True)
    assert json.loads(capsys.readouterr().out)["probe_share"] == 0.0123456789


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    schema()
    assert "StaticConfig" in json.loads(capsys.readouterr().out)["$defs"]


def test_descriptions_and_names_are_neither_markup_nor_terminal_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "[red]\x1b[31m.yaml"
    path.write_text(STATIC + 'description: "[/bold] \\e[31m\\a two\\nlines"\n')
    check([path])
    show(str(path))
    shown = capsys.readouterr().out
    assert r"[red]\x1b[31m.yaml: valid (static)" in shown
    assert r"[/bold] \x1b[31m\x07 two lines" in shown
    path.write_text('policy: "\\e[31m"\n')
    with pytest.raises(typer.Exit):
        check([path])
    shown += capsys.readouterr().err
    assert r"unknown policy `\x1b[31m`" in shown
    assert "\x1b" not in shown


def test_a_file_that_is_given_twice_is_checked_twice(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    check([files[0], files[0]])
    assert capsys.readouterr().out == f"{files[0]}: valid (static)\n" * 2
