"""How many cores other processes keep busy, and what a benchmark does about it.

A benchmark needs the machine for itself. OpenMP threads spin at the end of every parallel region until the last of them
arrives; if one thread waits for a core that another process uses, all of them wait, and throughput falls by a factor of
six to twenty. Fewer threads than free cores avoid that.

Linux counts the time of every core in /proc/stat and that of every process in /proc/PID/stat. Where these files are
missing, nothing is reported. psutil reads the same files; it would be one more dependency for two sums.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turbospec.errors import UserError

PROC = Path("/proc")
MAX_THREADS = 4 * (os.cpu_count() or 1)
"""More only wait for one another, and a process ends where no more can be started."""
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
START_WINDOW_SECONDS = 1.0
MIN_WINDOW_SECONDS = 0.5
"""Times are counted in ticks of 10 ms; a shorter window would measure rounding."""
BUSY_CORES = 0.25
"""Load of other processes, in cores, that is ignored at the start: machines have background work."""
DISTURBING_CORES = 0.1
"""A run is marked if others used this many cores beyond those that the benchmark leaves free."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds since some moment: the clock's, of CPU time on our cores, and of CPU time of our processes."""

    clock: float
    busy: float
    own: float


class CpuWatch:
    """Measures, from one call to the next, how many cores other processes keep busy."""

    def __init__(self) -> None:
        self._last = _times()

    def restart(self) -> None:
        """Begin a window."""
        self._last = _times()

    def other_cores(self) -> float | None:
        """Cores that others kept busy, on average over the window; ends it and begins the next.

        Only the cores that this process may run on count. Time that a hypervisor gave to other machines counts as
        theirs. None where the window is too short, which then continues, or where the system does not report times.
        """
        before, now = self._last, _times()
        if before is None or now is None or now.clock - before.clock < MIN_WINDOW_SECONDS:
            return None
        self._last = now
        if now.own < before.own:  # a descendant lost its parent, and its time is no longer counted as ours
            return None
        others = (now.busy - before.busy) - (now.own - before.own)
        return max(0.0, others) / (now.clock - before.clock)


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def other_cores_now() -> float | None:
    """Measure for a second; None where the system does not report times."""
    watch = CpuWatch()
    time.sleep(START_WINDOW_SECONDS)
    return watch.other_cores()


def free_cores(others: float, available: int) -> int:
    """Whole cores that others leave of the available ones, at least one."""
    return max(1, available - max(0, math.ceil(others - BUSY_CORES)))


def threads_from_environment() -> int | None:
    """What OMP_NUM_THREADS asks for; None without it.

    Raises:
        UserError: it is more than `MAX_THREADS`.
    """
    value = os.environ.get("OMP_NUM_THREADS", "")
    if not (value.isascii() and value.isdecimal()) or not value.strip("0"):
        return None
    if len(value) > len(str(MAX_THREADS)) or int(value) > MAX_THREADS:
        raise UserError(f"OMP_NUM_THREADS={value[:20]} is too large; use at most {MAX_THREADS}")
    return int(value)


def shared_machine(others: float | None, available: int | None = None) -> str | None:
    """A remark where other processes use the machine; None where they do not or where that is unknown."""
    if others is None or others <= BUSY_CORES:
        return None
    return (
        f"other processes use {others:.1f} of {available or cores()} cores: figures are lower than on an idle machine"
    )


def choose_threads(asked: int | None, others: float | None, available: int) -> tuple[int | None, str | None]:
    """Threads of the models, and a remark where other processes use the machine.

    Args:
        asked: by the user; never changed.
        others: cores that other processes use; None where that is not known.
        available: cores that this process may run on.

    Returns:
        None in place of threads where torch may take as many as it does by itself.
    """
    if others is None or (seen := shared_machine(others, available)) is None:
        return asked, None
    free = free_cores(others, available)
    if asked is None:
        return free, (
            f"{seen}; measuring with {free} {'thread' if free == 1 else 'threads'}, --threads chooses another number"
        )
    if asked > free:
        return asked, (
            f"{seen}; {asked} threads will wait for one another, which can cost most of the throughput: "
            f"--threads {free} avoids that"
        )
    return asked, seen


def _times() -> _Times | None:
    """None where /proc is missing or, as in some sandboxes, all its counts are 0."""
    try:
        allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in (PROC / "stat").read_text().splitlines()]
        counted = [[int(ticks) for ticks in line[1:9]] for line in lines if line and line[0] in allowed]
        own = _own_ticks()
    except (AttributeError, OSError, ValueError):
        return None
    if len(counted) < len(allowed) or not any(map(sum, counted)):
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal
    busy = sum(sum(ticks) - sum(ticks[3:5]) for ticks in counted)
    return _Times(time.monotonic(), busy * TICK_SECONDS, own * TICK_SECONDS)


def _own_ticks() -> int:
    """CPU time of this process and its descendants; that of a process that has ended is part of its parent's."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError):  # it has ended
                # After the name, which may hold anything: state, parent, ...
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                ticks[int(folder.name)] = sum(map(int, fields[11:15]))
                children[int(fields[1])].append(int(folder.name))
    total, todo = 0, [os.getpid()]
    while todo:
        process = todo.pop()
        total += ticks.get(process, 0)
        todo += children[process]
    return total
