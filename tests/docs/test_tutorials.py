"""Runs the tutorials: what a page tells its reader to write and to type, and what it shows of the output.

In a page of docs/tutorials, a `yaml` block with a title is written to that file, `sh` blocks are run in order in one
folder, and each line of a `text` block must appear in the output of the `sh` block before it. In an expected line any
number matches any other, `…` matches any text, and spaces do not count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.name != "index.md")

BLOCK = re.compile(r"^```(?P<language>sh|text|yaml title=\"(?P<file>[^\"]+)\")\n(?P<body>.*?)^```$", re.M | re.S)
VARYING = re.compile(r"…|[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"


class Block(NamedTuple):
    language: str
    file: str | None
    body: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are written, run or expected, in order."""
    return [
        Block(match["language"].split()[0], match["file"], match["body"])
        for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def pattern(line: str) -> re.Pattern[str]:
    """What an expected line says of a line of output."""
    parts, end = [], 0
    line = "".join(line.split())
    for varying in VARYING.finditer(line):
        parts += [re.escape(line[end : varying.start()]), ".*" if varying[0] == "…" else NUMBER]
        end = varying.end()
    return re.compile("".join([*parts, re.escape(line[end:])]))


def missing(expected: str, output: str) -> list[str]:
    """The expected lines that no line of the output matches."""
    lines = ["".join(line.split()) for line in output.splitlines()]
    return [
        line
        for line in expected.splitlines()
        if line.strip() and not any(pattern(line).fullmatch(candidate) for candidate in lines)
    ]


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block as a reader would: in a shell, with TurboSpec's environment active."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "120", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_says_what_happens(page: Path, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    output, ran = "", 0
    for block in blocks(page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.body, encoding="utf-8")
        elif block.language == "sh":
            finished = run(block.body, tmp_path)
            output, ran = finished.stdout, ran + 1
            assert finished.returncode == 0, f"{block.body}\n{output}"
        else:
            assert not missing(block.body, output), output
    assert ran >= 2, "the page shows hardly any command"


def test_every_tutorial_is_run() -> None:
    assert {page.stem for page in PAGES} == {"first-policy", "first-scenario", "reading-a-trace"}


@pytest.mark.parametrize(
    ("expected", "output", "found"),
    [
        ("steps │ 75 │", "│ steps  │   80 │", False),
        ("│ steps │ 75 │", "│ steps  │   80 │", True),
        ("│ off │ … │ met │", "│ off │ 4 │ 110 │ met │", True),
        ("│ off │ … │ met │", "│ off │ 4 │ 110 │ missed │", False),
        ("a.yaml: valid", "b.yaml: valid", False),
        ("share 36.4%", "share 7%", True),
    ],
)
def test_expected_lines(expected: str, output: str, *, found: bool) -> None:
    assert (not missing(expected, output)) is found
