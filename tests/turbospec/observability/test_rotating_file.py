from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from turbospec.observability.rotating_file import RotatingFile


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_an_empty_file_that_was_there_before_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.touch()
    RotatingFile(path, max_bytes=100, backups=1).close()
    assert path.exists()


@pytest.mark.parametrize("other", ["of another process\n", None])
def test_a_file_that_is_no_longer_at_its_path_is_closed_and_removes_nothing(tmp_path: Path, other: str | None) -> None:
    path = tmp_path / "lines"
    file = RotatingFile(path, max_bytes=100, backups=1)
    path.unlink()
    if other is not None:
        path.write_text(other)
    file.close()
    assert names_in(tmp_path) == ([] if other is None else ["lines"])


def test_lines_that_just_fit_make_no_backup(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "lines", max_bytes=8, backups=1)
    file.write(b"123\n")
    file.write(b"456\n")
    file.close()
    assert names_in(tmp_path) == ["lines"]


def test_what_became_a_backup_does_not_count_any_more(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"1234567\n")
    file = RotatingFile(tmp_path / "lines", max_bytes=8, backups=2)
    file.write(b"123\n")
    file.write(b"456\n")
    file.close()
    assert names_in(tmp_path) == ["lines", "lines.1"]


def test_a_pipe_that_somebody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="not a regular file"):
            RotatingFile(tmp_path / "pipe", max_bytes=8, backups=1)
    finally:
        os.close(reader)


def test_others_may_read_the_file_where_the_umask_permits(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        file = RotatingFile(tmp_path / "lines", max_bytes=8, backups=1)
    finally:
        os.umask(before)
    assert (tmp_path / "lines").stat().st_mode & 0o777 == 0o644
    file.close()


def test_a_lock_that_fails_on_a_file_system_with_locks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output"):
        RotatingFile(tmp_path / "lines", max_bytes=8, backups=1)
