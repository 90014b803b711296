"""Drafter KV blocks in the target's memory: taken, given back and taken again, without a change of any output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.turbospec_engine.harness import (
    Pair,
    RandomPlans,
    Reference,
    assert_blocks_sound,
    byte_level_tokenizer,
    random_prompts,
    write_head,
)
from turbospec import StepView, UserError
from turbospec_engine import Engine, SamplingParams, request_blocks
from turbospec_engine.blocks import BlockAllocator, PartAllocator
from turbospec_engine.config import EngineConfig
from turbospec_engine.drafter.draft_model import DraftModel
from turbospec_engine.kv_store import KVShape, drafter_parts
from turbospec_engine.request_blocks import IDLE_STEPS, RequestBlocks

FULL = {"num_blocks": 40, "block_size": 8, "max_num_seqs": 8, "max_num_batched_tokens": 64}
"""Twenty blocks for each of two models with the same shape: room for 160 tokens in both, or 320 in the target alone."""


@dataclass
class Phases(RandomPlans):
    """Drafts at random for `on` steps, then nothing for `off` steps, and so on."""

    on: int = 5
    off: int = 15

    def lengths(self, view: StepView) -> np.ndarray:
        if view.step % (self.on + self.off) < self.on:
            return self.rng.integers(0, self.longest + 1, view.size)
        return np.zeros(view.size, np.int64)


@pytest.fixture
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter is off for long after four steps."""
    monkeypatch.setattr(request_blocks, "IDLE_STEPS", 4)


def idle_request(num_tokens: int) -> Any:
    """A new one, which counts as one that has not drafted for long."""
    lists: dict[str, list[int]] = {"block_ids": [], "draft_block_ids": []}
    numbers = {"num_tokens": num_tokens, "decode_steps": IDLE_STEPS, "drafted_at": 0, "draft_computed": 0}
    return SimpleNamespace(params=SamplingParams(), **numbers, **lists)


def drafter_pair(kind: str, llama: Pair, folder: Path) -> Pair:
    if kind == "model":
        return llama
    write_head(folder / "head", LlamaConfig.from_pretrained(llama.target), list(range(0, 257, 2)), seed=0)
    return Pair(llama.target, folder / "head")


@pytest.mark.usefixtures("short_idle")
@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
@pytest.mark.parametrize("kind", ["model", "head"])
def test_greedy_output_is_the_targets_whatever_is_given_back(
    kind: str, emit: str, llama: Pair, tmp_path: Path, reference: Callable[[Path], Reference]
) -> None:
    plans = Phases(seed=3, longest=4)
    engine = Engine(drafter_pair(kind, llama, tmp_path).config(emit=emit, max_draft=4, **FULL), plans)
    prompts = random_prompts(12, longest=50, seed=6)
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(max_tokens=40))
    requests = list(engine._requests.values())
    while engine.has_work():
        engine.step()
        assert_blocks_sound(engine)
    assert engine.scheduler.blocks.num_given_back > 0
    assert sum(int(outcome.catch_up_tokens) for outcome in plans.outcomes) > 0
    compared = reference(llama.target).compare(prompts, [r.output_tokens.tolist() for r in requests], 40)
    assert not compared.different
    assert compared.near_ties <= 1
    assert engine.allocator.num_free == engine.allocator.num_blocks


@pytest.mark.parametrize(
    ("drafter_memory", "max_draft", "holds"), [("shared", 0, False), ("shared", 3, True), ("reserved", 0, True)]
)
def test_a_request_that_never_drafts_leaves_the_drafters_memory_to_the_target(
    drafter_memory: str, max_draft: int, holds: bool, llama: Pair
) -> None:
    engine = Engine(llama.config(drafter_memory=drafter_memory, **FULL), Phases(longest=2))
    engine.add_request([5, 6, 7] * 9, SamplingParams(max_tokens=20, ignore_eos=True, max_draft=max_draft))
    (request,) = engine._requests.values()
    held: list[bool] = []
    while engine.has_work():
        engine.step()
        if not request.finish_reason:
            held.append(bool(request.draft_block_ids))
    assert set(held) == {holds}


@pytest.mark.usefixtures("short_idle")
@torch.inference_mode()
def test_drafts_after_giving_back_are_those_of_a_fresh_drafter(llama: Pair) -> None:
    engine = Engine(llama.config(**FULL), Phases(longest=0))
    engine.add_request([5, 6, 7] * 9, SamplingParams(max_tokens=60, ignore_eos=True))
    (request,) = engine._requests.values()
    assert isinstance(engine.drafter, DraftModel)
    for _ in range(10):
        engine.step()
    blocks = engine.scheduler.blocks
    assert request.draft_block_ids
    assert blocks.give_back_idle(engine.scheduler.running)
    assert not request.draft_block_ids
    assert engine.drafter.lag_tokens(request) == request.num_tokens - 2
    drafts = []
    for _ in range(2):
        assert blocks.grow(request, request.num_tokens + 4, drafting=True)
        drafts.append(engine.drafter.propose([request], np.array([4]), np.zeros((1, 4)), None).tokens.tolist())
        request.draft_computed = request.num_tokens
        # Other numbers in the memory that the drafter had: it computes its KV again.
        for key in engine.drafter.runner.store.keys:
            key[request.draft_block_ids] = 7.0
        blocks.give_back(request)
    assert drafts[0] == drafts[1]


def test_blocks_that_only_rejected_drafts_needed_are_free_after_the_step(llama: Pair) -> None:
    plans = RandomPlans(seed=2)
    engine = Engine(llama.config(block_size=1, num_blocks=128), plans)
    for prompt in ([5, 6, 7], [8, 9]):
        engine.add_request(prompt, SamplingParams(max_tokens=16, ignore_eos=True))
    while engine.has_work():
        engine.step()
        for request in engine.scheduler.running:
            assert len(request.block_ids) == request.computed
            assert len(request.draft_block_ids) in (0, request.computed)
    assert any((outcome.accepted < outcome.drafted).any() for outcome in plans.outcomes)


def test_requests_are_admitted_without_drafter_blocks_while_it_is_off(llama: Pair) -> None:
    def most_running(memory: str, plans: RandomPlans) -> int:
        engine = Engine(llama.config(drafter_memory=memory, **FULL), plans)
        most = 0
        for round_steps in (4 * IDLE_STEPS, 30):
            for prompt in [[3] * 40] * 8:
                engine.add_request(prompt, SamplingParams(max_tokens=200, ignore_eos=True))
            most = 0
            for _ in range(round_steps):
                engine.step()
                most = max(most, len(engine.scheduler.running))
            engine.abort_all()
        return most

    never, always = Phases(longest=0), Phases(on=10**6, longest=1)
    always.lengths = lambda view: np.ones(view.size, np.int64)  # pyright: ignore[reportAttributeAccessIssue]
    assert most_running("reserved", never) < most_running("shared", never)
    assert most_running("reserved", always) == most_running("shared", always)


def test_the_draft_limit_is_0_where_the_drafters_blocks_do_not_fit(llama: Pair) -> None:
    plans = Phases(on=10**6, longest=3)
    config = {"num_blocks": 9, "block_size": 8}
    engine = Engine(llama.config(**config), plans)
    output = engine.generate([[4] * 60], SamplingParams(max_tokens=10, ignore_eos=True))[0]
    assert len(output.token_ids) == 10
    assert all((view.draft_limits == 0).all() for view in plans.views)


@pytest.mark.parametrize(
    ("target", "drafter", "expected"),
    [
        (KVShape(8, 4, 64), KVShape(1, 3, 64), (8, 21)),
        (KVShape(8, 4, 64), KVShape(4, 4, 64), (2, 16)),
        (KVShape(8, 4, 64), KVShape(8, 8, 64), (1, 8)),
        (KVShape(36, 8, 128), KVShape(28, 8, 128), None),
        (KVShape(2, 4, 16), KVShape(4, 4, 16), None),
        (KVShape(2, 1, 2), KVShape(2, 8, 8), None),
    ],
)
def test_parts_of_a_block(target: KVShape, drafter: KVShape, expected: tuple[int, int] | None) -> None:
    assert drafter_parts(target, drafter, 16) == expected


def test_a_deeper_drafter_has_memory_of_its_own(
    llama: Pair, tmp_path: Path, reference: Callable[[Path], Reference]
) -> None:
    shape = LlamaConfig.from_pretrained(llama.target)
    shape.num_hidden_layers = 3
    LlamaForCausalLM(shape).save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    plans = RandomPlans()
    engine = Engine(Pair(llama.target, tmp_path).config(num_blocks=22, block_size=8), plans)
    blocks = engine.scheduler.blocks
    assert blocks.drafter is not None
    assert not isinstance(blocks.drafter, PartAllocator)
    prompts = random_prompts(8, longest=40, seed=1)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=24))
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], 24)
    assert not compared.different
    assert blocks.drafter.num_free == blocks.drafter.num_blocks
    assert sum(int(outcome.drafted.sum()) for outcome in plans.outcomes) > 0


@pytest.mark.parametrize("own", [True, False])
def test_a_drafter_without_blocks_of_the_target_gives_none_back_and_delays_no_one(own: bool) -> None:
    """Its own memory would be no use to the target; a look-up has none."""
    blocks = RequestBlocks(BlockAllocator(3, 8), BlockAllocator(3, 8) if own else None)
    running = idle_request(16)
    assert blocks.admit(running, [])
    assert not blocks.admit(idle_request(16), [running])
    assert (blocks.num_given_back, len(running.draft_block_ids)) == (0, 2 if own else 0)
    blocks.drafts_lack_blocks = True
    assert blocks.admit(idle_request(8), [running])


def test_requests_wait_no_longer_than_drafts_lack_blocks() -> None:
    target = BlockAllocator(8, 8)
    blocks = RequestBlocks(target, PartAllocator(target, 1, 8))
    running, new = idle_request(8), idle_request(8)
    assert blocks.admit(running, [])
    blocks.drafts_lack_blocks = True
    assert not blocks.admit(new, [running])
    blocks.observe_plan(np.array([True]), np.array([False]))
    assert blocks.admit(new, [running])


def test_the_request_that_has_not_drafted_for_longest_gives_its_blocks_back() -> None:
    target = BlockAllocator(8, 8)
    blocks = RequestBlocks(target, PartAllocator(target, 1, 8))
    requests = [idle_request(8) for _ in range(3)]
    for request, more in zip(requests, (0, 2, -1), strict=True):
        assert blocks.admit(request, [])
        request.decode_steps += more
    assert blocks.give_back_idle(requests)
    assert [bool(request.draft_block_ids) for request in requests] == [True, False, True]
    assert blocks.give_back_idle(requests)
    assert [bool(request.draft_block_ids) for request in requests] == [False, False, True]
    assert not blocks.give_back_idle(requests), "the last one drafted a step later"


def test_a_divided_block_is_given_back_when_its_last_part_is_free() -> None:
    target = BlockAllocator(2, 16)
    drafter = PartAllocator(target, 3, 4)
    first, second = list[int](), list[int]()
    assert drafter.grow(first, 8)
    assert drafter.grow(second, 4)
    assert (target.num_free, drafter.num_spare, drafter.num_free) == (1, 0, 3)
    assert drafter.blocks_to_divide(1) == 1
    drafter.shrink(first, 0)
    assert (target.num_free, drafter.num_spare) == (1, 2)
    assert drafter.blocks_to_divide(2) == 0
    drafter.shrink(second, 0)
    assert (target.num_free, drafter.num_spare) == (2, 0)
    assert not drafter.grow(first, 25)
    assert drafter.grow(first, 24)


def test_an_unknown_kind_of_memory_is_refused() -> None:
    with pytest.raises(UserError, match="use 'shared' or 'reserved'"):
        EngineConfig("models/target", drafter_memory="lent")  # pyright: ignore[reportArgumentType]
