from __future__ import annotations

from pathlib import Path

import pytest

from turbospec import UserError
from turbospec.cli.outputs import check_outputs


def test_folders_are_made_and_files_are_left_as_they_are(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    check_outputs(tmp_path / "a" / "b" / "new.json", None, old)
    assert [*(tmp_path / "a" / "b").iterdir()] == []
    assert old.read_text() == "old"


def test_a_file_for_two_outputs_is_refused(tmp_path: Path) -> None:
    check_outputs(None, None)
    with pytest.raises(UserError, match=r"r\.json: given for two outputs; name another file for one"):
        check_outputs(tmp_path / "r.json", tmp_path / "r.json")


@pytest.mark.parametrize("locked", ["folder", "file"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.touch()
    refused = {"folder": tmp_path, "file": path}[locked]
    monkeypatch.setattr("os.access", lambda place, mode: place != refused)
    with pytest.raises(UserError, match=r"r\.json: cannot be written; name another file"):
        check_outputs(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written; name another file"):
        check_outputs(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"r\.json: its folder cannot be made \(Not a directory\); name another file"):
        check_outputs(tmp_path / "file" / "folder" / "r.json")
