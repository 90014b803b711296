"""Writes a tuned policy as a policy file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from turbospec.files.writing import write_whole
from turbospec.files.yaml_text import LINE_LENGTH, yaml_text
from turbospec.policy import PolicyConfig


def write_policy(path: Path, config: PolicyConfig, comment: Sequence[str]) -> None:
    """Write the settings that are set explicitly, after a comment; atomically."""
    settings = config.model_dump(mode="json", exclude_unset=True)
    lines = [line for text in comment for line in textwrap.wrap(text, LINE_LENGTH - 2)]
    write_whole(path, "".join(f"# {line}\n" for line in lines) + yaml_text(settings))
