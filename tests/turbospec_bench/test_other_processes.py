"""Cores that other processes use, on a made-up /proc; ticks are 10 ms."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from turbospec_bench import other_processes
from turbospec_bench.other_processes import CpuWatch, choose_threads, free_cores

ME = os.getpid()


@dataclass
class Machine:
    """Two cores that we may use, one that we may not, and some processes."""

    proc: Path
    now: float = 0.0

    def show(self, now: float, cores: dict[int, int], processes: dict[int, tuple[int, tuple[int, ...]]]) -> None:
        """`cores` are busy ticks; `processes` have a parent and ticks: own user and system, those of ended children."""
        self.now = now
        lines = [f"cpu{core} {ticks} 0 0 {round(100 * now) - ticks} 0 0 0 0 0 0" for core, ticks in cores.items()]
        (self.proc / "stat").write_text("\n".join(["cpu 1 2 3 4", *lines, "intr 1 2 3"]))
        for process, (parent, ticks) in processes.items():
            (self.proc / str(process)).mkdir(exist_ok=True)
            before = " ".join(["0"] * 9)
            stat = f"{process} (a name) with) S {parent} {before} {' '.join(map(str, ticks))} 20 0"
            (self.proc / str(process) / "stat").write_text(stat)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(other_processes, "PROC", tmp_path)
    monkeypatch.setattr(other_processes, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(other_processes.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    return made


def test_our_own_time_and_that_of_our_children_is_not_others(machine: Machine) -> None:
    child, grandchild, stranger = ME + 1, ME + 2, ME + 3
    machine.show(10.0, {0: 500, 1: 500, 2: 0}, {ME: (1, (100, 0, 0, 0)), child: (ME, (50, 0, 0, 0))})
    watch = CpuWatch()
    machine.show(
        12.0,
        {0: 700, 1: 600, 2: 200},
        {
            ME: (1, (130, 20, 0, 0)),  # 0.5 s
            child: (ME, (70, 0, 20, 10)),  # 0.5 s, of which 0.3 of a process that has ended
            grandchild: (child, (100, 0, 0, 0)),  # 1 s
            stranger: (1, (500, 0, 0, 0)),
        },
    )

    assert watch.other_cores() == pytest.approx(0.5)  # 3 s on our two cores, 2 s of them ours, within 2 s


def test_a_window_that_is_too_short_goes_on(machine: Machine) -> None:
    machine.show(10.0, {0: 0, 1: 0}, {ME: (1, (0, 0, 0, 0))})
    watch = CpuWatch()
    machine.show(10.3, {0: 30, 1: 30}, {})
    assert watch.other_cores() is None
    machine.show(11.0, {0: 100, 1: 100}, {})
    assert watch.other_cores() == pytest.approx(2.0)
    machine.show(12.0, {0: 100, 1: 100}, {})
    assert watch.other_cores() == pytest.approx(0.0)
    machine.show(13.0, {0: 200, 1: 100}, {})
    watch.restart()
    machine.show(14.0, {0: 200, 1: 200}, {})
    assert watch.other_cores() == pytest.approx(1.0)


@pytest.mark.parametrize("content", [None, "cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0", "cpu0 1 1 1 1 1 1 1 1", "?"])
def test_where_the_system_does_not_say_nothing_is_known(machine: Machine, content: str | None) -> None:
    if content is not None:
        (machine.proc / "stat").write_text(content)
    watch = CpuWatch()
    machine.now = 5.0
    assert watch.other_cores() is None


@pytest.mark.parametrize(
    ("others", "available", "free"),
    [(0.0, 2, 2), (0.2, 2, 2), (0.9, 2, 1), (1.0, 2, 1), (2.0, 2, 1), (1.1, 64, 63), (1.5, 64, 62), (9.0, 4, 1)],
)
def test_threads_leave_others_their_cores(others: float, available: int, free: int) -> None:
    assert free_cores(others, available) == free


def test_a_number_that_was_asked_for_is_kept_and_remarked_on() -> None:
    assert choose_threads(None, None, 2) == (None, None)
    assert choose_threads(None, 0.1, 2) == (None, None)
    chosen, remark = choose_threads(None, 1.0, 2)
    assert chosen == 1
    assert "other processes use 1.0 of 2 cores" in str(remark)
    assert "measuring with 1 thread," in str(remark)
    chosen, remark = choose_threads(2, 1.0, 2)
    assert chosen == 2
    assert "--threads 1 avoids that" in str(remark)
    chosen, remark = choose_threads(1, 1.0, 2)
    assert chosen == 1
    assert "--threads" not in str(remark)
