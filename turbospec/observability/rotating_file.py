"""A file of lines that one process writes, and that becomes a backup at a given size.

`logging.handlers.RotatingFileHandler` rotates in the same way, but takes no lock: two processes that write one file
mix their lines and move each other's backups.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from contextlib import suppress
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that have no locks."""


class TakenError(OSError):
    """Another process writes the file."""

    def __init__(self) -> None:
        super().__init__(errno.EWOULDBLOCK, "another process writes it")


class RotatingFile:
    """Opens and locks a file; the first line that is written makes a backup of what was in it.

    Backups are called `<name>.1` (the newest), `<name>.2` and so on. Lines are on disk as whole as the file system
    lets them be: a line that cannot be written to its end is removed again.

    Args:
        path: the file; a symbolic link is followed, and its target has the backups beside it.
        max_bytes: size at which the file becomes a backup and a new one begins.
        backups: backups kept. With 0 earlier content is overwritten, and `max_bytes` does not count.

    Raises:
        TakenError: another process writes the file.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, max_bytes: int, backups: int) -> None:
        self._path = os.path.realpath(path)
        self._max_bytes = max_bytes
        self._backups = backups
        self._is_new = not os.path.lexists(self._path)
        self._file = _open_locked(self._path)
        self._size = self._file.seek(0, os.SEEK_END)
        self._begun = False

    def write(self, line: bytes) -> None:
        """Append one line.

        Raises:
            OSError: it, or a backup, cannot be written.
        """
        if not self._begun or (self._backups and self._size + len(line) > self._max_bytes):
            self._begin_anew()
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; one that was made here and has no line is removed.

        Raises:
            OSError: what was written may be lost.
        """
        if self._is_new and not self._size and _is_at(self._file.fileno(), self._path):
            with suppress(OSError):
                os.unlink(self._path)
        self._file.close()

    def _begin_anew(self) -> None:
        if self._size and self._backups:
            for number in range(self._backups, 0, -1):
                with suppress(FileNotFoundError):
                    os.replace(f"{self._path}.{number - 1}" if number > 1 else self._path, f"{self._path}.{number}")
            # The old file stays locked until the new one is, so that another process finds one of them taken.
            before, self._file = self._file, _open_locked(self._path)
            before.close()
            if self._file.seek(0, os.SEEK_END):  # another process made it, between moving and opening
                raise TakenError
        else:
            self._file.truncate(0)
        self._size = 0
        self._begun = True


def _open_locked(path: str) -> io.FileIO:
    """The regular file of a path, made if there is none, locked and opened for appending.

    Raises:
        TakenError: another process has the lock.
        OSError: it cannot be opened, or is no regular file.
    """
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        file = io.FileIO(descriptor, "ab")
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            _lock(descriptor)
            if _is_at(descriptor, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # another process moved the file between opening and locking


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TakenError from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
