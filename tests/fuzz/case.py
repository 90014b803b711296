"""A case: one command line with the files, environment and streams that it meets, as plain data."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path

Content = bytes | str | None
"""Of a file: its bytes; or the target of a symlink; None where the file is removed."""

WRITES = (
    "--json", "--report", "--pictures", "--traces", "--write", "--output", "--plot", "--trace", "--resume",
)  # fmt: skip
"""Options whose values are written."""
LONG = 1000
"""Characters of an argument beyond which it is saved compressed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One command line in a folder with the stock, the places (`places.py`) and the files given here."""

    kind: str
    """The class of hostile input, by which failures are counted."""
    arguments: tuple[str, ...]
    """After `turbospec`; `{server}` is the address of the hostile HTTP server."""
    files: dict[str, Content] = field(default_factory=dict[str, Content])
    """By path in the folder; they replace those of the stock."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """Variables; `{folder}` is the case's folder."""
    stdin: str = "places/null"
    """A path, `closed`, or `terminalless`, which is /dev/null."""
    stdout: str = "file"
    """`file`, `closed`, `full` (a device that is full) or `pipe` (a pipe without a reader)."""
    stderr: str = "file"
    must_fail: str = ""
    """Why exit code 0 would be wrong; empty where it may be right."""
    must_not_say: str = ""
    """Words that would mislead."""
    real: bool = False
    """Whether it runs in a new interpreter rather than in a forked one."""

    @property
    def command(self) -> str:
        """The subcommand's name."""
        return " ".join(word for word in self.arguments[:2] if word.isalpha()) if self.arguments else ""

    @property
    def outputs(self) -> set[str]:
        """Paths that the command was told to write."""
        words = self.arguments
        after = {value for option, value in pairwise(words) if option in WRITES}
        joined = {word.partition("=")[2] for word in words if word.partition("=")[0] in WRITES}
        return after | joined | ({"profile.json"} if words[:1] == ("profile",) else set[str]())

    @property
    def line(self) -> str:
        """The command line for a shell, with what else is unusual."""
        words = [f"{name}={value}" for name, value in self.environment.items()]
        words += ["turbospec", *self.arguments]
        shown = " ".join(shlex.quote(word if len(word) < 400 else f"{word[:40]}…({len(word)})") for word in words)
        shown += "" if self.stdin == "places/null" else f" <{self.stdin}"
        shown += "" if self.stdout == "file" else f" >{self.stdout}"
        return shown + ("" if self.stderr == "file" else f" 2>{self.stderr}")


def dump(case: Case, path: Path) -> None:
    """Write a case; contents are compressed."""
    document = {each.name: getattr(case, each.name) for each in fields(case)}
    document["files"] = {
        name: _packed(content) if isinstance(content, bytes) else content for name, content in case.files.items()
    }
    document["arguments"] = [_short(word) for word in case.arguments]
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Case:
    """Read what `dump` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    document["files"] = {
        name: _unzipped(content) if isinstance(content, dict) else content
        for name, content in document["files"].items()
    }
    document["arguments"] = tuple(map(_long, document["arguments"]))
    return Case(**document)


def _short(word: str) -> dict[str, str] | str:
    return word if len(word) <= LONG else _packed(word.encode("utf-8", "surrogateescape"))


def _long(word: dict[str, str] | str) -> str:
    return word if isinstance(word, str) else _unzipped(word).decode("utf-8", "surrogateescape")


def _packed(content: bytes) -> dict[str, str]:
    return {"zlib": base64.b64encode(zlib.compress(content, 9)).decode()}


def _unzipped(packed: dict[str, str]) -> bytes:
    return zlib.decompress(base64.b64decode(packed["zlib"]))
