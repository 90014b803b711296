from __future__ import annotations

import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

pytest.importorskip("vllm")

from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

from tests.turbospec.hosts.vllm import fuzz_loop
from turbospec.hosts.vllm.scheduler import schedulers as hosted


@pytest.mark.skipif(not hasattr(Scheduler, "_holds_kv_blocks"), reason="written for vLLM 0.32")
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_no_order_of_events_breaks_it(seed: int) -> None:
    """On vLLM's own scheduler and KV cache, without a model."""
    from tests.vllm.fuzz_scheduler import RealServer

    with fuzz_loop.quiet():
        done = fuzz_loop.walk(seed, RealServer)
    assert done.problems == []


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


def test_who_waits_for_something_else_than_a_turn_does_not_start_next() -> None:
    scheduler = object.__new__(hosted.TurboSpecScheduler)
    blocked, first, second = (
        Mock(num_preemptions=0, arrival_time=time.time() - age, num_tokens=33) for age in (9, 5, 1)
    )
    scheduler.kv_cache_config, scheduler.block_size = SimpleNamespace(kv_cache_groups=["all layers"]), 16
    scheduler.kv_cache_manager = Mock(watermark_blocks=1)
    free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
    free_blocks.return_value = 100
    scheduler.running, scheduler.max_num_running_reqs, scheduler.max_num_active_reqs = [], 8, 8
    scheduler.skipped_waiting, scheduler.kv_holding_waiting = FCFSRequestQueue(), FCFSRequestQueue()
    scheduler.waiting = FCFSRequestQueue([first, second])
    if hasattr(Scheduler, "_holds_kv_blocks"):  # 0.32
        scheduler.deferred_waiting = {blocked}
        scheduler.waiting.prepend_request(blocked)
    else:
        scheduler.skipped_waiting.add_request(blocked)
    queue = scheduler._queue()
    assert (queue.requests, queue.admitted) == (3, 2)
    assert 5 <= queue.waiting_seconds < 9

    for blocks, admitted in ((0, 0), (3, 0), (4, 1), (7, 2)):
        free_blocks.return_value = blocks
        assert scheduler._queue().admitted == admitted, "each needs three blocks, beside one that stays free"
    scheduler.max_num_active_reqs = scheduler.max_num_running_reqs = 1
    assert scheduler._queue().admitted == 1
    scheduler.waiting.remove_requests({first, second})
    assert scheduler._queue() == hosted.Queue(requests=1)
