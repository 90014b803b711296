from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec.files.writing import write_whole


def test_an_interruption_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "results.json"
    write_whole(path, "old")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_on_a_full_disk_the_old_file_stays_and_the_content_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "results.json"
    write_whole(path, "old")
    other = tmp_path / "temporary"
    other.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(other))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\); the content is kept"):
        write_whole(path, "new")
    (kept,) = other.iterdir()
    assert kept.read_text() == "new"
    assert kept.suffix == ".json"
    assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [path, other]


@pytest.mark.parametrize("parent", ["folder/results.json", "file/results.json"])
def test_a_place_that_was_taken_meanwhile_loses_nothing(
    parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "results.json").mkdir(parents=True)
    other = tmp_path / "temporary"
    other.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(other))
    with pytest.raises(UserError, match="the content is kept in"):
        write_whole(tmp_path / parent, "new")
    (kept,) = other.iterdir()
    assert kept.read_text() == "new"


def test_without_any_room_the_error_says_that_the_content_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="the content is lost"):
        write_whole(tmp_path / "file" / "results.json", "new")


def test_links_devices_and_permissions_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "results.json", tmp_path / "link.json"
    write_whole(path, b"old")
    path.chmod(0o640)
    link.symlink_to(path.name)
    write_whole(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    before = os.lstat("/dev/null")
    with pytest.raises(UserError, match="this is a pipe, socket or device"):
        write_whole(Path("/dev/null"), "new")
    assert os.lstat("/dev/null") == before


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_text_that_utf_8_cannot_hold_is_escaped(tmp_path: Path) -> None:
    write_whole(tmp_path / "new", "\ud800é")
    assert (tmp_path / "new").read_text() == "\\ud800é"


WRITER = """
import sys
from pathlib import Path
from turbospec.files.writing import write_whole
for number in range(100):
    write_whole(Path(sys.argv[1]), sys.argv[2] * 5000)
"""


def test_two_writers_leave_no_torn_file(tmp_path: Path) -> None:
    path = tmp_path / "results.txt"
    write_whole(path, "a" * 5000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        assert path.read_text() in ("a" * 5000, "b" * 5000)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [*tmp_path.iterdir()] == [path]
