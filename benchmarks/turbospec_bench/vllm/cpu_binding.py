"""Binds the processes of a vLLM server to cores.

vLLM's workers on CPUs bind themselves to cores and leave one to the other processes of the server. These are bound to
none, so that the kernel sometimes moves them onto the workers' cores; how often changed figures more than the policies
did.

The engine core busy-waits for its workers. The API server, on the same core, is then scheduled late: in many runs first
tokens were sent 0.3 to 2 s late, until the engine core had a lower priority.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
NICENESS = 10
"""Of the processes that busy-wait for workers."""


def keep_off_bound_cores(group: int) -> set[int]:
    """Bind the unbound processes of a group to the cores that no process of the group is bound to.

    Parents of bound processes, which busy-wait for them, get a lower priority.

    Returns:
        The cores without bound processes: all of ours where no process binds itself (GPUs); none where every core is
        taken, and on systems that cannot bind processes.
    """
    if not hasattr(os, "sched_getaffinity") or not PROCESSES.is_dir():
        return set()
    ours, free = os.sched_getaffinity(0), os.sched_getaffinity(0)
    others: list[int] = []
    waiting: set[int] = set()
    for process in _members(group):
        with suppress(OSError):  # it has ended
            if (cores := os.sched_getaffinity(process)) < ours:
                free -= cores
                waiting.add(_parent(process))
            else:
                others.append(process)
    if free and free < ours:
        for process in others:
            bind(process, free)
            if process in waiting:
                _lower_priority(process)
    return free


def bind(process: int, cores: Iterable[int]) -> None:
    """Bind all threads of a process."""
    with suppress(OSError):
        for thread in _threads(process):
            os.sched_setaffinity(thread, cores)


def _lower_priority(process: int) -> None:
    with suppress(OSError):
        for thread in _threads(process):
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def _threads(process: int) -> list[int]:
    return [int(thread.name) for thread in (PROCESSES / str(process) / "task").iterdir()]


def _parent(process: int) -> int:
    # After the name, which may hold anything: state, parent, ...
    return int((PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()[1])


def _members(group: int) -> list[int]:
    members: list[int] = []
    for entry in PROCESSES.iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                members.append(int(entry.name))
    return members
