from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.v1.core.sched.scheduler import Scheduler

from turbospec.hosts.vllm import scheduler as hosted


def test_what_lies_between_two_steps_is_the_seconds_unless_nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 100))
    monkeypatch.setattr(hosted, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    for method in ("schedule", "set_pause_state"):
        monkeypatch.setattr(Scheduler, method, lambda *_: None)
    scheduler = object.__new__(hosted.TurboSpecScheduler)
    scheduler._began, scheduler._was_paused, scheduler.running = 0, False, []

    def began() -> int:
        scheduler.schedule()
        return scheduler._began

    assert began() == 1
    scheduler.running = ["a request"]
    assert began() == 1  # the step before has ended later, and it is from there that the loop counts
    scheduler.set_pause_state("paused, and the request stays")
    assert began() == 2
    assert began() == 2
    scheduler.running = []
    assert began() == 3
