"""The DFlash drafter: the head's logits, its context, and heads that do not fit. What it does as others:
test_one_pass.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.turbospec_engine.harness import FixedPlans, Pair, RandomPlans, Reference, write_dflash_head
from tests.turbospec_engine.one_pass import (
    LONGEST,
    TIGHT,
    Drafted,
    Recorded,
    change_config,
    change_weights,
    check_drafts,
    check_refused,
)
from training import dflash
from turbospec import UserError
from turbospec_engine import Engine, SamplingParams, attention
from turbospec_engine.drafter import DFlashDrafter

MASK_TOKEN = 1


@pytest.fixture
def tiny(llama: Pair, tmp_path: Path) -> Pair:
    """The tests' usual target, and a random head for it."""
    write_dflash_head(tmp_path / "head", LlamaConfig.from_pretrained(llama.target), seed=0)
    return Pair(llama.target, tmp_path / "head")


class WholeSequences:
    """The head as training computes it: whole sequences, without a cache."""

    def __init__(self, pair: Pair) -> None:
        self.target = Reference(pair.target).model.cpu()
        config = Qwen3Config.from_dict(json.loads((pair.drafter / "config.json").read_text()) | {"block_size": 0})
        self.head = dflash.BlockHead(config)
        self.head.load_state_dict(load_file(pair.drafter / "model.safetensors"))
        self.rotary = LlamaRotaryEmbedding(self.target.config)

    @torch.inference_mode()
    def logits(self, drafted: Drafted) -> torch.Tensor:
        """(draft tokens, vocabulary) of a draft."""
        ids = torch.tensor([drafted.tokens])
        self.head.block_size = 1 + len(drafted.draft)
        features, _ = dflash.read_target(self.target, ids[:, :-1], self.head.entering)
        embed, start = self.target.get_input_embeddings(), torch.tensor([len(drafted.tokens) - 2])
        hidden = self.head(features, embed(ids[:, -1:]), embed(torch.tensor(MASK_TOKEN)), start, self.rotary)
        return self.target.get_output_embeddings()(hidden[0, 0])


@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
def test_the_drafts_are_those_of_whole_sequences(tiny: Pair, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_drafts(tiny, settings, WholeSequences(tiny).logits, monkeypatch)


@pytest.mark.parametrize("rows", ["gathered", "long"])
def test_so_are_those_of_other_ways_to_compute_attention(
    rows: str, tiny: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other devices, and of long blocks."""
    if rows == "long":
        monkeypatch.setattr(attention, "SHORT_QUERY", 1)
    else:
        monkeypatch.setattr(
            attention,
            "KernelRows",
            lambda batch, short, store: attention.GatheredRows(batch, short, store.block_size, torch.device("cpu")),
        )
    check_drafts(tiny, {}, WholeSequences(tiny).logits, monkeypatch)


def test_each_token_enters_the_context_once(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is rejected, and whatever steps do not draft."""
    engine = Engine(tiny.config(), RandomPlans(longest=LONGEST))
    recorded = Recorded(engine, monkeypatch)
    output = engine.generate([[5] * 20], SamplingParams(max_tokens=60, ignore_eos=True))[0]
    assert len(recorded.read) > 10
    positions = np.concatenate(recorded.read)
    assert positions.tolist() == list(range(len(positions)))
    assert len(positions) > 20 + len(output.token_ids) / 2


def test_a_block_attends_in_both_directions(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first draft token depends on how many masks follow."""
    found: list[torch.Tensor] = []
    for longest in (1, 4):
        engine = Engine(tiny.config(), FixedPlans(longest=longest))
        drafter = engine.drafter
        assert isinstance(drafter, DFlashDrafter)
        compute = drafter._logits

        def kept(*args: Any, compute: Callable[..., torch.Tensor] = compute) -> torch.Tensor:
            found.append(compute(*args))
            return found[-1]

        monkeypatch.setattr(drafter, "_logits", kept)
        engine.add_request([7, 8, 9], SamplingParams(max_tokens=20, ignore_eos=True))
        before = len(found)
        while len(found) == before:
            engine.step()
    assert [len(each) for each in found] == [1, 4]
    assert (found[0][0] - found[1][0]).abs().max() > 1e-3


def named(**fields: object) -> dict[str, object]:
    return {"dflash_config": {"mask_token_id": MASK_TOKEN, "target_layer_ids": [0, -1, 0]} | fields}


MISFITS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another width": (
        lambda f: write_dflash_head(
            f,
            LlamaConfig.from_dict(json.loads((f / "config.json").read_text()) | {"hidden_size": 32, "head_dim": 8}),
            0,
        ),
        "a DFlash head for a target of width 32, not 64",
    ),
    "another architecture": (lambda f: change_config(f, architectures=["DFlash2DraftModel"]), "a DFlash head, which"),
    "no dflash_config": (lambda f: change_config(f, dflash_config=None), "needs layers of Qwen3 and a dflash_config"),
    "layers of another model": (lambda f: change_config(f, model_type="llama"), "needs layers of Qwen3"),
    "no layers": (lambda f: change_config(f, **named(target_layer_ids=[])), r"target_layer_ids = \[\] is no list"),
    "no mask token": (lambda f: change_config(f, **named(mask_token_id=None)), "the mask token None is no token"),
    "a mask token out of range": (lambda f: change_config(f, **named(mask_token_id=277)), "mask token 277 is no token"),
    "causal blocks": (lambda f: change_config(f, **named(causal=True)), "causal = True"),
    "sliding attention": (
        lambda f: change_config(f, layer_types=["full_attention", "sliding_attention"]),
        "sliding attention",
    ),
    "a draft vocabulary": (lambda f: change_config(f, draft_vocab_size=100), "draft_vocab_size is not its vocab_size"),
    "no norm of keys": (
        lambda f: change_weights(f, lambda weights: weights.pop("layers.1.self_attn.k_norm.weight")),
        "lack.*k_norm",
    ),
    "an embedding of its own": (
        lambda f: change_weights(f, lambda weights: weights.update({"embed_tokens.weight": torch.zeros(2, 2)})),
        "tensors that its config does not describe",
    ),
    "a mask embedding of its own": (
        lambda f: (f / "mask_embedding.pt").write_bytes(b""),
        "mask_embedding.pt",
    ),
    "a layer less": (lambda f: change_config(f, num_hidden_layers=1), "does not describe"),
    "a layer more": (lambda f: change_config(f, num_hidden_layers=3), "lack what its config describes"),
    "a layer that the target lacks": (
        lambda f: change_config(f, **named(target_layer_ids=[0, 1, 0])),
        "reads the layers 1, 2, 1, but the target has 2",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_head_that_does_not_fit_is_refused_in_one_line(what: str, tiny: Pair) -> None:
    breaks, words = MISFITS[what]
    breaks(tiny.drafter)
    check_refused(tiny, words)


@pytest.mark.parametrize("name", ["norm.weight", "layers.0.self_attn.v_proj.weight"])
def test_logits_that_are_not_finite_are_refused(name: str, tiny: Pair) -> None:
    change_weights(tiny.drafter, lambda weights: weights[name].mul_(1e38))
    with pytest.raises(UserError, match="no finite logits"):
        Engine(tiny.config(), FixedPlans())


def test_a_block_of_the_cache_may_hold_one_token(tiny: Pair) -> None:
    engine = Engine(tiny.config(block_size=1), FixedPlans(longest=3))
    (output,) = engine.generate([[1, 2, 3]], SamplingParams(max_tokens=8, ignore_eos=True))
    assert len(output.token_ids) == 8
