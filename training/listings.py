"""Tables, JSON lines and logs from data files of the standard library that the corpus never reads."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

TABLES_MOST, JSON_MOST, LOG_MOST = 2, 45, 80
"""Most records of a codec's table, of a file as JSON lines, and of the log."""
HEADING = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d)  (\w+)|(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})  ([\w ]+?)  <")
CHANGE = re.compile(r"\t\* ([^:]+): *(.*)")
MESSAGE_CHARS = 60


@dataclass(frozen=True)
class Listing:
    """Lines of one structure. ``source`` identifies their file; ``most`` limits the records taken from it."""

    source: str
    lines: tuple[str, ...]
    most: int


def of_the_standard_library() -> Iterator[Listing]:
    """Character tables of codecs as they are, mathematical test cases as JSON lines, IDLE's change log by file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted((root / "encodings").glob("*.py")):
        rows = table_rows(path.read_text(encoding="utf-8"))
        if rows:
            yield Listing(f"stdlib:encodings/{path.name}", tuple(rows), TABLES_MOST)
    for name in ("cmath_testcases.txt", "math_testcases.txt"):
        lines = json_lines((root / "test" / name).read_text(encoding="utf-8"))
        yield Listing(f"stdlib-test:{name}", tuple(lines), JSON_MOST)
    lines = log_lines((root / "idlelib" / "ChangeLog").read_text(encoding="utf-8"))
    yield Listing("stdlib:idlelib/ChangeLog", tuple(lines), LOG_MOST)


def table_rows(text: str) -> list[str]:
    """Rows of a codec's decoding table for bytes that are not ASCII: ``'\\u2500'   #  0x80 -> BOX DRAWINGS ...``."""
    rows = re.findall(r"^ +('.*' +#  0x[89A-F].*)$", text, re.MULTILINE)
    return [row for row in rows if "UNDEFINED" not in row and "<control>" not in row]


def json_lines(text: str) -> list[str]:
    """Test cases ``name function arguments -> results flags`` as JSON objects, one a line."""
    lines: list[str] = []
    for line in text.splitlines():
        name, arrow, results = line.partition(" -> ")
        if arrow and not line.startswith("--"):
            identifier, function, *arguments = name.split()
            expected = [word for word in results.split() if word != "--"]
            lines.append(
                json.dumps({"id": identifier, "function": function, "arguments": arguments, "expected": expected})
            )
    return lines


def log_lines(text: str) -> list[str]:
    """A change log in CVS's format as one line for each changed file: time, author, file, beginning of the message."""
    lines: list[str] = []
    heading = ""
    for paragraph in re.split(r"\n(?=\S)|\n\n", text):
        joined = " ".join(line.strip() for line in paragraph.splitlines())
        if found := HEADING.match(paragraph):
            when, author, old_when, old_author = found.groups()
            if old_when:
                when = f"{datetime.strptime(old_when, '%a %b %d %H:%M:%S %Y'):%Y-%m-%d %H:%M}"
            heading = f"{when} {(author or old_author).split()[0].lower()}"
        elif heading and (change := CHANGE.match(f"\t{joined}")):
            message = change[2][:MESSAGE_CHARS].strip()
            lines += [f"{heading} {file.strip()}: {message}" for file in change[1].split(",")]
    return lines
