"""A few commands ended at random moments; `python -m tests.fuzz.kills` ends more of them."""

from __future__ import annotations

from tests.fuzz.test_command_lines import run


def test_commands_that_are_ended_leave_whole_files_and_no_process() -> None:
    run("kills", "--moments", "3", "--seed", "5", "--jobs", "simulate")
