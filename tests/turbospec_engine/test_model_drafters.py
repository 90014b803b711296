"""What holds for every drafter with a model, whatever its kind."""

from __future__ import annotations

from collections.abc import Sequence
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
    write_dflash_head,
    write_head,
    write_parallel_head,
)
from turbospec.interface import IntArray
from turbospec_engine import Engine, SamplingParams, attention, engine
from turbospec_engine.draft import Draft
from turbospec_engine.drafter import DraftModel
from turbospec_engine.request import Request

DRAFTED = 3
HEADS = {
    "eagle3": lambda folder, target: write_head(folder, target, range(0, 200, 2), seed=0),
    "parallel": lambda folder, target: write_parallel_head(folder, target, seed=0),
    "dflash": lambda folder, target: write_dflash_head(folder, target, seed=0),
}


@pytest.fixture(params=["draft model", *HEADS])
def pair(request: pytest.FixtureRequest, llama: Pair, tmp_path: Path) -> Pair:
    if request.param == "draft model":
        return llama
    HEADS[request.param](tmp_path / "head", LlamaConfig.from_pretrained(llama.target))
    return Pair(llama.target, tmp_path / "head")


def test_no_attention_builds_a_plan_for_every_shape(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a step nor in the passes that try the models."""
    forward, excluded = attention.PagedAttention.forward, list[bool]()

    def spy(*args: Any) -> torch.Tensor:
        excluded.append(not torch.backends.cuda.cudnn_sdp_enabled())
        return forward(*args)

    monkeypatch.setattr(attention.PagedAttention, "forward", spy)
    kernels, gpu = attention.kernels_for_any_shape, torch.device("cuda")
    monkeypatch.setattr(engine, "kernels_for_any_shape", lambda device: kernels(gpu))
    served = Engine(pair.config(), FixedPlans(longest=2))
    tried = len(excluded)
    served.generate([[5] * 40], SamplingParams(max_tokens=8, ignore_eos=True))
    assert 0 < tried < len(excluded)
    assert all(excluded)


def test_a_long_lag_is_caught_up_in_passes_of_bounded_size(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the draft is that after a single pass."""
    draft, largest = first_draft(pair, 512, monkeypatch)
    bounded_draft, bounded = first_draft(pair, 16, monkeypatch)
    assert largest > 50
    # The target's largest pass, and the mask tokens of a parallel head.
    assert bounded <= 16 + 2 * DRAFTED
    assert draft == bounded_draft


def test_a_draft_is_that_of_a_drafter_that_reads_the_whole_text_anew(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever drafts were accepted and rejected before it."""
    plans = RandomPlans(longest=3)
    served = Engine(pair.config(max_num_seqs=3), plans)
    drafter: Any = served.drafter
    propose = drafter.propose

    def propose_twice(requests: Sequence[Request], lengths: IntArray, *others: Any) -> Draft:
        draft = propose(requests, lengths, *others)
        held = [request.draft_computed for request in requests]
        for request, length in zip(requests, lengths.tolist(), strict=True):
            if length:
                request.draft_computed = 0
        anew = propose(requests, lengths, *others)
        assert draft.tokens.tolist() == anew.tokens.tolist()
        assert [request.draft_computed for request in requests] == held
        return draft

    monkeypatch.setattr(drafter, "propose", propose_twice)
    served.generate([[5, 6, 7], [8] * 9, [3]], SamplingParams(max_tokens=24, ignore_eos=True))
    drafted = np.concatenate([outcome.drafted for outcome in plans.outcomes])
    accepted = np.concatenate([outcome.accepted for outcome in plans.outcomes])
    assert (accepted < drafted).any()
    if isinstance(drafter, DraftModel):  # the heads' weights are random, and their drafts wrong
        assert (accepted[drafted > 1] == drafted[drafted > 1]).any()


def first_draft(pair: Pair, max_num_batched_tokens: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """A draft after a long prompt, and the tokens of the drafter's largest pass."""
    plans = FixedPlans(longest=0)
    sizes = {"max_num_batched_tokens": max_num_batched_tokens, "max_num_seqs": 1, "max_draft": DRAFTED}
    served = Engine(pair.config(**sizes), plans)
    served.add_request([5, 6, 7, 8, 9] * 12, SamplingParams(max_tokens=40, ignore_eos=True))
    while served.is_prefilling():
        served.step()
    drafter: Any = served.drafter
    store = drafter.runner.store if isinstance(drafter, DraftModel) else drafter.store
    write, propose, passes, drafts = store.write, drafter.propose, list[int](), list[Draft]()

    def noted_write(layer: int, slots: Any, key: torch.Tensor, value: torch.Tensor) -> None:
        passes.append(len(key))
        write(layer, slots, key, value)

    def noted_propose(*given: Any) -> Draft:
        drafts.append(propose(*given))
        return drafts[-1]

    monkeypatch.setattr(store, "write", noted_write)
    monkeypatch.setattr(drafter, "propose", noted_propose)
    plans.longest = DRAFTED
    served.step()
    assert plans.outcomes[-1].catch_up_tokens > 50
    return drafts[0].tokens[0].tolist(), max(passes)
