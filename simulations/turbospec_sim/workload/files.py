"""Files that a scenario refers to, by paths relative to its own."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from turbospec.errors import UserError
from turbospec.files.shipped import is_name


def _from_scenario(path: Path, info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("folder", ".")) / path


def _name_or_path(source: str, info: ValidationInfo) -> str:
    return source if is_name(source) else str(_from_scenario(Path(source), info))


InputFile = Annotated[Path, AfterValidator(_from_scenario)]
"""A path in a scenario file, relative to that file."""
NameOrFile = Annotated[str, AfterValidator(_name_or_path)]
"""The name of a shipped file, or a path (with a suffix or a folder) relative to the scenario file."""


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Line numbers (from 1) and values of a JSONL file.

    Raises:
        UserError: the file cannot be read, or a line is not JSON.
    """
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}:{number}: not JSON ({error})") from error


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers (the header is line 1) and fields of a CSV file.

    Raises:
        UserError: the file cannot be read.
    """
    reader = csv.DictReader(_text(path).splitlines())
    for row in reader:
        yield reader.line_num, {name: value for name, value in row.items() if value != ""}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except OSError as error:
        raise UserError(
            f"{path}: cannot read it ({error.strerror}); paths are relative to the scenario file"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file in UTF-8") from error
