"""Which cores the processes of a server run on.

vLLM's workers on CPUs bind themselves to cores and leave one to the rest of the server, which is bound to none: the
kernel moves it onto the workers' cores now and then, and how often decides more than what is compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")


def keep_off_bound_cores(group: int) -> set[int]:
    """Bind the processes of a group that are bound to no cores to those that none of the others is bound to.

    Returns:
        These cores: all of ours where no process binds itself (GPUs) or nothing is left; none on systems that do not
        bind processes.
    """
    if not hasattr(os, "sched_getaffinity") or not PROCESSES.is_dir():
        return set()
    ours, free = os.sched_getaffinity(0), os.sched_getaffinity(0)
    others: list[int] = []
    for process in _members(group):
        with suppress(OSError):  # it has ended
            if (cores := os.sched_getaffinity(process)) < ours:
                free -= cores
            else:
                others.append(process)
    if not free:
        return ours
    if free < ours:
        for process in others:
            bind(process, free)
    return free


def bind(process: int, cores: Iterable[int]) -> None:
    """Bind all threads of a process."""
    with suppress(OSError):
        for thread in (PROCESSES / str(process) / "task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def _members(group: int) -> list[int]:
    members: list[int] = []
    for entry in PROCESSES.iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                members.append(int(entry.name))
    return members
