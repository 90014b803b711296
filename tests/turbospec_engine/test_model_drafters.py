"""What holds for every drafter with a model, whatever its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from tests.turbospec_engine.harness import (
    FixedPlans,
    Pair,
    write_dflash_head,
    write_head,
    write_parallel_head,
)
from turbospec_engine import Engine, SamplingParams, attention, engine

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
