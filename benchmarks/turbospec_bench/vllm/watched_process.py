"""Processes in a group of their own that end with this one, also when this one is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

WATCH = Path(__file__).with_name("watch.py")


def start(command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own: Ctrl-C does not reach it, and its children can be ended with it.

    Args:
        command: the program and its arguments; its stdin is empty.
        output: where its stdout and stderr go.
        environment: its environment variables.

    Returns:
        The group's first process. It passes SIGTERM on to the command and ends with the command's status.
    """
    return subprocess.Popen(
        [sys.executable, "-IS", str(WATCH), *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )
