"""Writing files: checked before the work whose results they take, written beside their place, then moved there.

A reader finds the old file or the new one, never a part. Two writers do not disturb one another, because each has a
partial file of its own; the last to finish is kept. Only regular files are written: a device is refused, and a symbolic
link stays a link whose target is replaced.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from turbospec.errors import UserError

PARTIAL = ".part"
"""Ending of partial files. Only a process that was killed leaves one."""
LONGEST_CHAIN = 40
"""Symbolic links that are followed; as many as Linux follows."""


def check_outputs(*paths: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Check that files can be written, before the work whose results they take. Their folders are made.

    Args:
        paths: outputs; None for those that are not wanted.
        inputs: files that the command reads, none of which may be an output.

    Raises:
        UserError: a file cannot be written, is an input, or is given twice.
    """
    read = {os.path.realpath(path) for path in inputs if path is not None}
    wanted: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        place = _place(path)
        if str(place) in read:
            raise UserError(f"{path}: is read by this command; name another file for the output")
        if place in wanted:
            raise UserError(f"{path}: given for two outputs; name another file for one")
        wanted.add(place)
        _check_file(path, place)


def check_folder(path: Path) -> None:
    """Make a folder for outputs and check that files can be written in it.

    Raises:
        UserError: it cannot be made, is no folder, or no file can be written in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try_to_write(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no file can be written there ({_reason(error)}); name another folder") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically and durably: an interruption leaves either the old file or the new one.

    Its folder is made. An existing file's permissions are kept; a new file's follow the umask. If the file cannot be
    written, for example because the disk is full, the content is kept in a temporary file, which the error names.

    Args:
        path: the file.
        content: text, written in UTF-8, or bytes.

    Raises:
        UserError: the file cannot be written.
    """
    # Text from outside may hold characters that UTF-8 lacks: halves of surrogate pairs.
    data = content if isinstance(content, bytes) else content.encode("utf-8", errors="backslashreplace")
    try:
        place = _place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        _replace(place, data)
    except UserError as error:
        raise UserError(f"{error}; {_kept_elsewhere(path, data)}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({_reason(error)}); {_kept_elsewhere(path, data)}") from error


def _place(path: Path) -> Path:
    """The regular file that is written for a path, which may be a symbolic link, or may not exist yet.

    Raises:
        UserError: the path names something else.
    """
    try:
        if _reaches_open_file(path):
            raise UserError(f"{path}: this is an open file of a process; name a file")
        place = Path(os.path.realpath(path))
        mode = place.stat().st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise UserError(f"{path}: cannot be written ({_reason(error)}); name another file") from error
    if stat.S_ISDIR(mode):
        raise UserError(f"{path}: this is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: this is a pipe, socket or device; name a file")
    return place


def _reaches_open_file(path: Path) -> bool:
    """Whether the path is a link such as /dev/stdout, whose file is already open and must not be replaced."""
    link = os.path.abspath(path)
    for _ in range(LONGEST_CHAIN):
        if not os.path.islink(link):
            return False
        folder = os.path.realpath(os.path.dirname(link))
        if folder.startswith("/proc/"):
            return True
        link = os.path.join(folder, os.readlink(link))
    return False


def _check_file(path: Path, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: its folder cannot be made ({_reason(error)}); name another file") from error
    try:
        with suppress(FileNotFoundError):  # it may appear or vanish at any time
            os.close(os.open(place, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        if len(os.fsencode(place.name)) > os.pathconf(place.parent, "PC_NAME_MAX"):
            raise OSError(0, "the name is too long")
        _try_to_write(place.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({_reason(error)}); name another file") from error


def _try_to_write(folder: Path) -> None:
    """Make a file in the folder and remove it, which also finds read-only and full file systems."""
    partial = _partial(folder)
    try:
        with partial.open("xb") as file:
            file.write(b"\0")
    finally:
        partial.unlink(missing_ok=True)


def _partial(folder: Path) -> Path:
    return folder / f".turbospec-{secrets.token_hex(8)}{PARTIAL}"


def _replace(place: Path, data: bytes) -> None:
    partial = _partial(place.parent)
    try:
        with partial.open("xb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, place)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _kept_elsewhere(path: Path, data: bytes) -> str:
    """Keep content that has no other place, readable by this user only; says where."""
    try:
        # An unpredictable name, made exclusively: the folder is shared with other users.
        descriptor, name = tempfile.mkstemp(prefix="turbospec-", suffix=path.suffix)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        return f"nor is there room for temporary files ({_reason(error)}): the content is lost"
    return f"the content is kept in {name}"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
