"""Reading files from outside: regular files only, of bounded size, in strict UTF-8, JSON with finite numbers.

Every file that a user names is opened here. A pipe, a device or an endless file is refused before it is read, so that
no command hangs on one.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from turbospec.errors import UserError

MEBIBYTE = 2**20
MAX_BYTES = 256 * MEBIBYTE
"""Largest file that is read as a whole."""
MAX_LINE_BYTES = 16 * MEBIBYTE
MAX_DEPTH = 100
"""Nesting of objects and lists in JSON. Deeper documents exhaust Python's stack in the code that walks them."""
MAX_INTEGER = 2**63 - 1


def open_file(path: Path, what: str, hint: str = "") -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: the file.
        what: what errors call it, such as "policy file".
        hint: how to mend a file that cannot be read, for the end of the error line; may be empty.

    Raises:
        UserError: there is no such file, it cannot be opened, or it is a folder, a pipe, a socket or a device.
    """
    tail = f"; {hint}" if hint else ""
    try:
        # Without O_NONBLOCK, opening a pipe waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such {what}{tail}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot read the {what} ({error.strerror}){tail}") from error
    except ValueError as error:  # a NUL character, or one that the file system's encoding lacks
        raise UserError(f"{str(path)!r}: not a file name ({error}){tail}") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise UserError(f"{path}: this is a folder; name a {what} in it")
    raise UserError(f"{path}: this is a pipe, socket or device; name a {what}")


def read_bytes(path: Path, what: str, *, limit: int = MAX_BYTES, hint: str = "") -> bytes:
    """The content of a file.

    Args:
        path: as for `open_file`.
        what: as for `open_file`.
        limit: largest size in bytes.
        hint: as for `open_file`.

    Raises:
        UserError: as for `open_file`, or the file is larger than `limit`.
    """
    try:
        with open_file(path, what, hint) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot read the {what} ({error.strerror})") from error
    if len(content) > limit:
        raise UserError(f"{path}: larger than {_size(limit)}, which no {what} is")
    return content


def read_text(path: Path, what: str, *, limit: int = MAX_BYTES, hint: str = "") -> str:
    """The text of a file in UTF-8, without a byte order mark. Arguments and errors as for `read_bytes`.

    Raises:
        UserError: also where the file is not in UTF-8.
    """
    try:
        return read_bytes(path, what, limit=limit, hint=hint).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not a text file in UTF-8 (byte {error.start}){f'; {hint}' if hint else ''}"
        ) from error


def read_lines(path: Path, what: str, *, hint: str = "") -> Iterator[str]:
    """The lines of a file of any size, in UTF-8; bytes that are not are replaced. Arguments as for `read_bytes`.

    The file is opened at once, and read although it is renamed meanwhile. Of a line that is longer than
    `MAX_LINE_BYTES`, such as the zeros that a loss of power may leave, the rest is skipped.

    Raises:
        UserError: as for `open_file`.
    """
    return _lines(open_file(path, what, hint), path, what)


def _lines(file: BinaryIO, path: Path, what: str) -> Iterator[str]:
    with file:
        try:
            while line := file.readline(MAX_LINE_BYTES):
                yield line.decode("utf-8", errors="replace")
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
        except OSError as error:
            raise UserError(f"{path}: cannot read the {what} ({error.strerror})") from error


def read_json(path: Path, what: str, *, limit: int = MAX_BYTES, hint: str = "") -> Any:
    """The JSON document of a file, as `parse_json` reads it. Arguments as for `read_bytes`.

    Raises:
        UserError: also where the file is not such a document.
    """
    text = read_text(path, what, limit=limit, hint=hint)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path}: not a {what} ({error}){f'; {hint}' if hint else ''}") from error


def parse_json(text: str) -> Any:
    """The value of a JSON document with finite numbers, integers of 64 bits and at most `MAX_DEPTH` levels.

    Raises:
        ValueError: it is not such a document.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    if _depth_exceeds(value, MAX_DEPTH):
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair in a string") from None
    return value


def is_finite_number(value: Any) -> bool:
    """Whether a value from a document is a number, and neither true nor false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; numbers must be finite")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is out of range")
    return number


def _integer(digits: str) -> int:
    # Python converts long texts in quadratic time.
    if len(digits) > len(str(MAX_INTEGER)) + 1 or abs(int(digits)) > MAX_INTEGER:
        raise ValueError(f"the number {digits[:20]}… is out of range")
    return int(digits)


def _depth_exceeds(value: Any, limit: int) -> bool:
    """Whether objects and lists are nested more than `limit` levels deep."""
    level = _containers([value])
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in _containers(cast("dict[Any, Any]", node).values() if isinstance(node, dict) else node)
        ]
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]


def _size(limit: int) -> str:
    return f"{limit // MEBIBYTE} MiB" if limit >= MEBIBYTE else f"{limit // 1024} KiB"
