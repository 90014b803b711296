import json

import pytest
from typer.testing import CliRunner

from turbospec import UserError
from turbospec.cli.policy import app

RUNNER = CliRunner()


@pytest.fixture
def files(tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("version: 1\npolicy: static\ndraft_length: 3\n")
    bad.write_text("version: 1\npolicy: static\ndraft_lenght: 3\n")
    return good, bad


def test_check_says_valid_and_of_which_kind(files):
    good, _ = files
    result = RUNNER.invoke(app, ["check", str(good)])
    assert result.exit_code == 0
    assert result.stdout == f"{good}: valid (static)\n"


def test_check_reports_every_file_and_exits_with_2(files):
    good, bad = files
    result = RUNNER.invoke(app, ["check", str(bad), str(good), "none.yaml"])
    assert result.exit_code == 2
    assert result.stdout == f"{good}: valid (static)\n"
    assert result.stderr.splitlines() == [
        f"{bad}:3: draft_lenght: unknown field; did you mean `draft_length`?",
        "none.yaml: no such policy file",
    ]


def test_show_prints_defaults_too():
    result = RUNNER.invoke(app, ["show", "ema-tiers"])
    assert result.exit_code == 0
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines()]
    assert ["slots.1.candidates", "[1, 3, 5, 7]"] in lines
    assert ["guard.fallback_draft_length", "0"] in lines


def test_show_json(files):
    good, _ = files
    result = RUNNER.invoke(app, ["show", str(good), "--json"])
    assert json.loads(result.stdout)["draft_length"] == 3


def test_show_leaves_a_users_mistake_to_main(files):
    _, bad = files
    result = RUNNER.invoke(app, ["show", str(bad)])
    assert isinstance(result.exception, UserError)


def test_schema_is_json():
    assert "$defs" in json.loads(RUNNER.invoke(app, ["schema"]).stdout)
