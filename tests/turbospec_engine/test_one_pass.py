"""Drafters with one pass: greedy output, KV lag, distributions, memory. Each with a parallel and with a DFlash head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from tests.turbospec_engine.harness import (
    FixedPlans,
    Pair,
    RandomPlans,
    Reference,
    assert_blocks_sound,
    random_prompts,
    write_dflash_head,
    write_parallel_head,
)
from tests.turbospec_engine.one_pass import LONGEST, MAX_TOKENS, TIGHT, Recorded
from turbospec_engine import Engine, SamplingParams, sizing
from turbospec_engine.drafter.one_pass import OnePassDrafter

HEADS = {"parallel": write_parallel_head, "dflash": write_dflash_head}


@pytest.fixture(params=HEADS)
def head(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def tiny(head: str, llama: Pair, tmp_path: Path) -> Pair:
    """The tests' usual target, and a random head for it."""
    HEADS[head](tmp_path / "head", LlamaConfig.from_pretrained(llama.target), seed=0)
    return Pair(llama.target, tmp_path / "head")


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
def test_greedy_output_is_the_targets(
    tiny: Pair, settings: Any, emit: str, reference: Callable[[Path], Reference]
) -> None:
    plans = RandomPlans(2, longest=LONGEST)
    engine = Engine(tiny.config(emit=emit, **settings), plans)
    prompts = random_prompts(8, longest=60, seed=3)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    compared = reference(tiny.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert compared.near_ties <= 1
    assert bool(engine.scheduler.num_preemptions) == bool(settings)
    assert sum(int(outcome.drafted.sum()) for outcome in plans.outcomes) > len(prompts)
    assert_blocks_sound(engine)
    assert engine.allocator.num_free == engine.allocator.num_blocks


def test_one_pass_drafts_all_tokens_and_catches_up(tiny: Pair, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = {"parallel": 2, "dflash": 0}[head]
    plans = FixedPlans(longest=0)
    engine = Engine(tiny.config(max_draft=3), plans)
    recorded = Recorded(engine, monkeypatch)
    engine.add_request([5] * 20, SamplingParams(max_tokens=40, ignore_eos=True))
    for _ in range(5):
        engine.step()
    assert recorded.read == []
    plans.longest = 3
    engine.step()
    assert plans.views[-1].parallel_drafter
    # 20 prompt tokens and 5 emitted ones, of which the first is not fed and 1 + 3 are ordinary.
    assert plans.views[-1].drafter_lag_tokens.tolist() == [20]
    assert plans.outcomes[-1].catch_up_tokens == 20
    assert [len(read) for read in recorded.read] == [24 + masks]
    assert recorded.drafts[-1].draft_rows.tolist() == [3]
    emitted = int(plans.outcomes[-1].emitted[0])
    engine.step()
    assert plans.views[-1].drafter_lag_tokens.tolist() == [0]
    assert [len(read) for read in recorded.read[1:]] == [emitted + masks]


def test_no_position_depends_on_the_tokens_drawn_before_it(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny.config(), FixedPlans(longest=4))
    recorded = Recorded(engine, monkeypatch)
    # The target may emit one token only, so that all contexts are alike.
    params = SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True, allowed_token_ids=(4,))
    for _ in range(4):
        engine.add_request([7, 8, 9], params)
    while not recorded.drafts:
        engine.step()
    assert len({tuple(row.tokens) for row in recorded.rows}) == 1
    assert len({row.draft[0] for row in recorded.rows}) > 1
    draft = recorded.drafts[0]
    assert draft.distributions is not None
    assert draft.distribution_index is not None
    first, *others = draft.distributions[draft.distribution_index]
    assert len(others) == 3
    for other in others:
        torch.testing.assert_close(other, first)


def test_greedy_and_sampled_requests_share_a_pass(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny.config(), RandomPlans(longest=4))
    recorded = Recorded(engine, monkeypatch)
    greedy = SamplingParams(max_tokens=20, ignore_eos=True)
    sampled = SamplingParams(max_tokens=20, temperature=1.0, ignore_eos=True)
    together = engine.generate([[5, 6, 7], [5, 6, 7], [9, 8]], [greedy, sampled, greedy])
    alone = Engine(tiny.config(), FixedPlans(longest=0)).generate([[5, 6, 7], [9, 8]], greedy)
    assert [together[0].token_ids, together[2].token_ids] == [output.token_ids for output in alone]
    mixed = [draft for draft in recorded.drafts if draft.distributions is not None]
    assert mixed
    for draft in mixed:
        assert draft.distribution_index is not None
        assert draft.confidence is not None
        assert (draft.distribution_index >= 0).sum() == len(draft.distributions)
        assert (np.isfinite(draft.confidence).sum(1) == draft.drafted).all()


def test_the_memory_of_a_block_is_what_is_allocated(tiny: Pair) -> None:
    engine = Engine(tiny.config(num_blocks=4, block_size=8), FixedPlans())
    assert isinstance(engine.drafter, OnePassDrafter)
    store = engine.target.store
    tensors = [*store.keys, *store.values, engine.drafter.hidden_states._states]
    assert sum(tensor.nbytes for tensor in tensors) == sizing._bytes_per_token(engine.config, engine.models) * 4 * 8
