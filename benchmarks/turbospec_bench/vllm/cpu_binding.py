"""Which cores the processes of a server run on.

vLLM's workers on CPUs bind themselves to cores and leave one to the rest of the server, which is bound to none: the
kernel moves it onto the workers' cores now and then, and how often decides more than what is compared.

The engine core looks for its workers' answers without a pause. On a core that it shares with the API server, that gets
its turn late: first tokens were sent 0.3 to 2 s late in many runs, until the engine core was given a lower priority.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
NICENESS = 10
"""Of the processes that wait for workers."""


def keep_off_bound_cores(group: int) -> set[int]:
    """Bind the processes of a group that are bound to no cores to those that none of the others is bound to; the
    parents of these others, which wait for them, yield to the rest from then on.

    Returns:
        These cores: all of ours where no process binds itself (GPUs) or nothing is left; none on systems that do not
        bind processes.
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
    if not free:
        return ours
    if free < ours:
        for process in others:
            bind(process, free)
            if process in waiting:
                _yield_to_others(process)
    return free


def bind(process: int, cores: Iterable[int]) -> None:
    """Bind all threads of a process."""
    with suppress(OSError):
        for thread in _threads(process):
            os.sched_setaffinity(thread, cores)


def _yield_to_others(process: int) -> None:
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
