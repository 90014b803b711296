from __future__ import annotations

import pytest

from tests.turbospec.hosts.vllm import fuzz_loop
from tests.turbospec.hosts.vllm.fuzz_loop import quiet, walk

EVENTS, FIRST_SEED = 8_000, 10
MET = (
    "catching up", "drafting", "drafting late", "drafts of a look-up", "empty", "lost", "preempting", "resets",
    "resuming", "skipping the drafter", "trimming", "turns", "verifying", "without TurboSpec",
)  # fmt: skip


def test_no_order_of_events_breaks_the_schedulers() -> None:
    """See `fuzz_loop` for what is checked, and how to run it longer and repeat a walk."""
    events, seed, met = 0, FIRST_SEED, set[str]()
    with quiet():
        while events < EVENTS:
            done = walk(seed)
            assert not done.problems, f"walk {seed}: {done.problems[0]}"
            events, seed, met = events + done.events, seed + 1, met | done.counts.keys()
    assert not set(MET) - met


def test_a_walk_depends_on_its_seed_alone() -> None:
    with quiet():
        first, again = walk(3), walk(3)
    assert first.counts == again.counts
    assert first.clock.perf_counter() == again.clock.perf_counter()


def test_a_run_fails_where_a_walk_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With requests that are never forgotten."""
    monkeypatch.setattr("turbospec.hosts.vllm.scheduler.requests.KnownRequests.forget", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["fuzz_loop", "--walk", "1"])
    assert fuzz_loop.main() == 1
    assert "are known" in capsys.readouterr().out
