"""KV blocks are never leaked, shared or freed twice, whatever arrives, is aborted or preempted."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.turbospec_engine.harness import Pair, RandomPlans, assert_blocks_sound, assert_owned_once
from turbospec_engine import Engine, SamplingParams
from turbospec_engine.blocks import BlockAllocator, PartAllocator
from turbospec_engine.request import Request
from turbospec_engine.request_blocks import IDLE_STEPS, RequestBlocks
from turbospec_engine.scheduler import Scheduler

BLOCK_SIZE = 4


class FakeRequest:
    """What the scheduler sees of a request."""

    def __init__(self, num_tokens: int, last: int) -> None:
        self.params = SamplingParams()
        self.num_tokens = num_tokens
        self.last = last
        self.computed = self.draft_computed = self.decode_steps = self.drafted_at = 0
        self.block_ids: list[int] = []
        self.draft_block_ids: list[int] = []

    @property
    def missing(self) -> int:
        return self.num_tokens - self.computed


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 12),
        max_num_seqs=st.integers(1, 5),
        budget=st.integers(5, 20),
        parts=st.integers(0, 3),
        part_size=st.integers(1, 6),
        gives_back=st.booleans(),
    )
    def build(
        self, num_blocks: int, max_num_seqs: int, budget: int, parts: int, part_size: int, gives_back: bool
    ) -> None:
        self.allocator = BlockAllocator(num_blocks, BLOCK_SIZE)
        drafter = PartAllocator(self.allocator, parts, part_size) if parts else None
        self.blocks = RequestBlocks(self.allocator, drafter, gives_back=gives_back)
        self.scheduler = Scheduler(self.blocks, max_num_seqs, budget)
        self.budget = budget

    @property
    def alive(self) -> list[FakeRequest]:
        return cast("list[FakeRequest]", [*self.scheduler.running, *self.scheduler.waiting])

    @rule(prompt=st.integers(1, 12), output=st.integers(1, 8))
    def arrive(self, prompt: int, output: int) -> None:
        capacity = self.allocator.num_blocks * BLOCK_SIZE
        if prompt < capacity:
            self.scheduler.add(cast(Request, FakeRequest(prompt, min(prompt + output, capacity))))

    @rule(choice=st.integers(0, 100))
    def abort(self, choice: int) -> None:
        if self.alive:
            self.scheduler.finish(cast(Request, self.alive[choice % len(self.alive)]))

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        batch = self.scheduler.schedule()
        assert batch.total_tokens <= self.budget
        assert bool(batch.requests) == self.scheduler.has_work()
        for request, num_tokens in zip(batch.requests, batch.num_tokens, strict=True):
            assert num_tokens >= 1
            if request.missing == 1:
                drafts, drafting = data.draw(st.integers(0, 6)), data.draw(st.booleans())
                request.drafted_at = request.decode_steps if drafting else request.drafted_at
                self.blocks.drafts_lack_blocks = data.draw(st.booleans())
                fits = self.blocks.fits(request, request.num_tokens + drafts, drafting=drafting)
                assert fits == self.blocks.grow(request, request.num_tokens + drafts, drafting=drafting)
        for request, num_tokens in zip(batch.requests, batch.num_tokens, strict=True):
            fake = cast(FakeRequest, request)
            fake.computed += num_tokens
            fake.decode_steps += data.draw(st.sampled_from([1, IDLE_STEPS]))
            if fake.missing == 0:
                spare = min(fake.last, len(fake.block_ids) * BLOCK_SIZE) - fake.num_tokens
                accepted = data.draw(st.integers(0, max(0, spare)))
                fake.computed += accepted
                fake.num_tokens += accepted + 1
                if fake.num_tokens >= fake.last:
                    self.scheduler.finish(request)
                else:
                    self.blocks.trim(request)

    @invariant()
    def every_block_has_one_owner(self) -> None:
        assert_owned_once(self.blocks, self.alive)
        assert all(not request.block_ids and not request.draft_block_ids for request in self.scheduler.waiting)
        assert len(self.scheduler.running) <= self.scheduler.max_num_seqs


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_latest_arrival_is_preempted_and_is_the_next_to_be_admitted() -> None:
    scheduler = Scheduler(RequestBlocks(BlockAllocator(4, BLOCK_SIZE)), max_num_seqs=4, max_num_batched_tokens=64)
    first, second, latest, waiting = requests = [FakeRequest(length, 20) for length in (8, 3, 3, 3)]
    for request in requests:
        scheduler.add(cast(Request, request))
    assert scheduler.schedule().requests == [first, second, latest]
    for request in (first, second, latest):
        request.computed, request.draft_computed = request.num_tokens, request.num_tokens - 1
        request.num_tokens += 1
    # The first one's next token needs another block.
    assert scheduler.schedule().requests == [first, second]
    assert [*scheduler.waiting] == [latest, waiting]
    assert (latest.computed, latest.draft_computed) == (0, 0), "no KV cache holds any of its tokens"


@pytest.mark.parametrize(("budget", "max_num_seqs", "limited"), [(10, 8, True), (24, 8, False), (10, 2, False)])
def test_prefill_is_the_limit_where_the_token_budget_leaves_requests_waiting(
    budget: int, max_num_seqs: int, limited: bool
) -> None:
    scheduler = Scheduler(RequestBlocks(BlockAllocator(32, BLOCK_SIZE), None, gives_back=True), max_num_seqs, budget)
    for _ in range(3):
        scheduler.add(cast(Request, FakeRequest(8, 12)))
    assert scheduler.is_prefill_limited(scheduler.schedule()) is limited


@pytest.mark.parametrize(
    ("blocks", "budget", "max_num_seqs", "limited"),
    [(5, 64, 8, True), (5, 16, 8, True), (32, 64, 8, False), (32, 16, 8, False), (5, 64, 2, False)],
    ids=["KV blocks", "KV blocks and token budget", "room for all", "token budget", "batch slots"],
)
def test_kv_blocks_are_the_limit_where_they_leave_requests_waiting(
    blocks: int, budget: int, max_num_seqs: int, limited: bool
) -> None:
    scheduler = Scheduler(RequestBlocks(BlockAllocator(blocks, BLOCK_SIZE)), max_num_seqs, budget)
    for _ in range(3):
        scheduler.add(cast(Request, FakeRequest(8, 12)))
    assert scheduler.is_kv_limited(scheduler.schedule()) is limited


def test_the_share_of_a_drafter_whose_memory_the_target_may_have() -> None:
    target = BlockAllocator(8, 16)
    assert RequestBlocks(target, PartAllocator(target, 4, 16)).shared_kv_share == 0.25
    assert RequestBlocks(target, PartAllocator(target, 4, 16), gives_back=False).shared_kv_share == 0.0
    assert RequestBlocks(target, BlockAllocator(8, 16)).shared_kv_share == RequestBlocks(target).shared_kv_share == 0.0


def test_double_free_is_an_error() -> None:
    allocator = BlockAllocator(4, BLOCK_SIZE)
    mine: list[int] = []
    assert allocator.grow(mine, 8)
    stale = list(mine)
    allocator.shrink(mine, 0)
    with pytest.raises(ValueError, match="freed twice"):
        allocator.shrink(stale, 0)


def test_grow_takes_all_or_nothing() -> None:
    allocator = BlockAllocator(2, BLOCK_SIZE)
    mine: list[int] = []
    assert not allocator.grow(mine, 9)
    assert not mine
    assert allocator.num_free == 2


@pytest.fixture(scope="module")
def crowded(llama: Pair) -> dict[str, Engine]:
    """Engines whose cache is too small for what they are asked to run."""
    config = {"num_blocks": 14, "block_size": 4, "max_num_seqs": 5, "max_num_batched_tokens": 16}
    return {emit: Engine(llama.config(emit=emit, **config), RandomPlans()) for emit in ("before_draft", "after_draft")}


@settings(max_examples=15, deadline=None)
@given(emit=st.sampled_from(["before_draft", "after_draft"]), seed=st.integers(0, 10_000))
def test_engine_under_random_arrivals_and_aborts(crowded: dict[str, Engine], emit: str, seed: int) -> None:
    engine, rng = crowded[emit], np.random.default_rng(seed)
    for _ in range(12):
        for _ in range(rng.integers(0, 3)):
            params = SamplingParams(max_tokens=int(rng.integers(1, 16)), temperature=float(rng.integers(0, 2)))
            engine.add_request(rng.integers(1, 257, rng.integers(1, 30)).tolist(), params)
        if engine._requests and rng.random() < 0.3:
            engine.abort(rng.choice(list(engine._requests)))
        engine.step()
        assert_blocks_sound(engine)
    while engine.has_work():
        engine.step()
    assert engine.allocator.num_free == engine.allocator.num_blocks
