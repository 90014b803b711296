"""Every command's options and arguments, read from the command line itself, with what each of them names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.main import get_command

from turbospec.cli.application import COMMANDS, application


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option or an argument."""

    command: tuple[str, ...]
    name: str
    """`--json`; for an argument, its name."""
    kind: type
    """Of the value; bool for a flag."""

    @property
    def is_option(self) -> bool:
        return self.name.startswith("-")

    @property
    def reads(self) -> str:
        """What it reads, a key of `INPUTS`; empty for others."""
        return INPUTS_OF.get((*self.command, self.name)) or INPUTS_OF.get((self.command[0], self.name), "")

    @property
    def writes(self) -> bool:
        """Whether it names a file or folder that is written."""
        return (self.name in OUTPUTS and self.kind is not bool) or (*self.command, self.name) == ("generate", "--trace")


INPUTS = {
    "scenario": ("scenario.yaml", "recorded.yaml", "profiled.yaml"),
    "policy": ("policy.yaml", "static.yaml", "table.yaml"),
    "profile": ("profile.json",),
    "results": ("results.json",),
    "simulated": ("simulated.json",),
    "trace": ("trace.jsonl",),
    "measured": ("measured.csv", "measured.json"),
    "texts": ("texts.jsonl",),
    "bench": ("bench.json",),
    "checkpoint": ("models/target", "models/drafter"),
    "models": ("models",),
    "workloads": ("workloads",),
}
"""Files and folders of the stock, by what they are."""
INPUTS_OF: dict[tuple[str, ...], str] = {
    ("generate", "--target"): "checkpoint",
    ("generate", "--drafter"): "checkpoint",
    ("profile", "--target"): "checkpoint",
    ("profile", "--drafter"): "checkpoint",
    ("bench", "--models"): "models",
    ("bench", "--workloads"): "workloads",
    ("bench", "--resume"): "results",
    ("bench", "targets", "results"): "results",
    ("doctor", "--bench"): "bench",
    ("doctor", "--baseline"): "bench",
    ("calibrate", "--measured"): "measured",
    ("policy", "check", "files"): "policy",
    ("policy", "show", "policy"): "policy",
    ("repeats", "files"): "texts",
    ("replay", "trace"): "trace",
    ("trace", "files"): "trace",
    ("simulate", "--resume"): "simulated",
    ("tune", "--resume"): "simulated",
    **{(command, "scenarios"): "scenario" for command in ("simulate", "capacity", "tune", "calibrate")},
    **{(command, "--policy"): "policy" for command in ("generate", "bench", "simulate", "capacity", "replay", "tune")},
    **{(command, "--profile"): "profile" for command in ("generate", "bench", "replay")},
}
OUTPUTS = ("--json", "--report", "--pictures", "--traces", "--write", "--output", "--plot")


def parameters() -> list[Parameter]:
    """All of them."""
    found: list[Parameter] = []
    for name in COMMANDS:
        group: Any = get_command(application([name]))
        found += _parameters(group.commands[name], (name,))
    return found


def _parameters(command: Any, words: tuple[str, ...]) -> Iterator[Parameter]:
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _parameters(subcommand, (*words, name))
    for one in command.params:
        kind = bool if getattr(one, "is_flag", False) else _plain(one.type_descriptor.annotation)
        yield Parameter(words, one.opts[0], kind)


def _plain(annotation: Any) -> type:
    """The type of one value, whatever it is wrapped in."""
    text = str(annotation)
    if "Path" in text:
        return Path
    return next((kind for kind in (int, float) if kind.__name__ in text), str)
