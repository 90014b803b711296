"""Checks of outputs before the work whose results they take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec.files.writing import check_folder, check_outputs


def test_folders_are_made_and_files_are_left_as_they_are(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    check_outputs(tmp_path / "a" / "b" / "new.json", None, old)
    assert [*(tmp_path / "a" / "b").iterdir()] == []
    assert old.read_text() == "old"


def test_a_file_for_two_outputs_is_refused(tmp_path: Path) -> None:
    check_outputs(None, None)
    (tmp_path / "link.json").symlink_to(tmp_path / "r.json")
    for other in ("r.json", "link.json"):
        with pytest.raises(UserError, match=rf"{other}: given for two outputs; name another file for one"):
            check_outputs(tmp_path / "r.json", tmp_path / other)


def test_an_input_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "in.json").touch()
    (tmp_path / "link.json").symlink_to(tmp_path / "in.json")
    with pytest.raises(UserError, match=r"link\.json: is read by this command; name another file for the output"):
        check_outputs(tmp_path / "link.json", inputs=[None, tmp_path / "in.json"])


def test_a_file_that_is_write_protected_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "r.json", os.open
    path.touch()

    def protected(place: Path | str, flags: int, *mode: int) -> int:
        if place == path and flags & os.O_WRONLY:  # also for root, who may write everything
            raise PermissionError(13, "Permission denied")
        return opened(place, flags, *mode)

    monkeypatch.setattr(os, "open", protected)
    with pytest.raises(UserError, match=r"r\.json: cannot be written \(Permission denied\); name another file"):
        check_outputs(path)


def test_a_folder_in_which_no_file_can_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", read_only)
    with pytest.raises(UserError, match=r"r\.json: cannot be written \(Read-only file system\); name another file"):
        check_outputs(tmp_path / "r.json")
    with pytest.raises(UserError, match=r"no file can be written there \(Read-only file system\); name another folder"):
        check_folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"r\.json: cannot be written \(Not a directory\); name another file"):
        check_outputs(tmp_path / "file" / "r.json")
    with pytest.raises(UserError, match=r"folder: no file can be written there \(Not a directory\)"):
        check_folder(tmp_path / "file" / "folder")


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "nul\0"])
def test_what_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        check_outputs(tmp_path / name)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to a device", "open file", "loop"])
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/null")
        case "link to a device":
            path.symlink_to("/dev/null")
        case "open file":
            path.symlink_to("/dev/stdout")
        case _:
            path.symlink_to(path)
    before = path.lstat()
    with pytest.raises(UserError, match=rf"{path}: (this is|cannot be written)"):
        check_outputs(path)
    assert path.lstat() == before


def test_a_link_is_followed_also_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("folder/new")
    check_outputs(tmp_path / "link")
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "link").is_symlink()
