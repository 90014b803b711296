"""Files that a scenario refers to, by paths relative to its own."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from turbospec.errors import UserError
from turbospec.files.reading import parse_json, read_text
from turbospec.files.shipped import is_name

HINT = "a scenario's paths are relative to its own file"


def _from_scenario(path: Path, info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("folder", ".")) / path


def _name_or_path(source: str, info: ValidationInfo) -> str:
    return source if is_name(source) else str(_from_scenario(Path(source), info))


InputFile = Annotated[Path, AfterValidator(_from_scenario)]
"""A path in a scenario file, relative to that file."""
NameOrFile = Annotated[str, AfterValidator(_name_or_path)]
"""The name of a shipped file, or a path (with a suffix or a folder) relative to the scenario file."""


def text_of(path: Path, what: str) -> str:
    """The text of a file.

    Args:
        path: the file.
        what: what errors call it.

    Raises:
        UserError: the file cannot be read.
    """
    return read_text(path, what, hint=HINT)


def parsed_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Line numbers (from 1) and values of a JSONL file with this text.

    Raises:
        UserError: a line is not JSON.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except ValueError as error:
                raise UserError(f"{path}:{number}: not JSON ({error})") from error


def csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers (the header is line 1) and fields of a CSV file with this text.

    Raises:
        UserError: it names a column twice, or a row has more fields than there are columns.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = reader.fieldnames or ()
        for name in columns:
            if list(columns).count(name) > 1:
                raise UserError(f"{path}:1: two columns are called `{shown(name)}`; rename one")
        for row in reader:
            if None in row:
                raise UserError(f"{path}:{reader.line_num}: more fields than columns; quote fields with commas")
            yield reader.line_num, {name: value for name, value in row.items() if value not in ("", None)}
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num + 1}: not CSV ({error})") from error


def shown(value: Any) -> str:
    """A value of a file as errors show it: short."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
