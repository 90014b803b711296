"""The parallel drafter: the head's logits, and heads that do not fit. What it does as others: test_one_pass.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.turbospec_engine.harness import FixedPlans, Pair, Reference, write_parallel_head
from tests.turbospec_engine.one_pass import (
    TIGHT,
    Drafted,
    change_config,
    change_weights,
    check_drafts,
    check_refused,
)
from training import peagle
from turbospec import UserError
from turbospec_engine import Engine

MASK_TOKEN = 1
LAYERS = [1, 0, 1]


@pytest.fixture
def tiny(llama: Pair, tmp_path: Path) -> Pair:
    """The tests' usual target, and a random head for it."""
    write_parallel_head(tmp_path / "head", LlamaConfig.from_pretrained(llama.target), seed=0)
    return Pair(llama.target, tmp_path / "head")


class WholeSequences:
    """The head as training computes it: whole sequences, without a cache."""

    def __init__(self, pair: Pair) -> None:
        self.target = Reference(pair.target).model.cpu()
        weights = load_file(pair.drafter / "model.safetensors")
        self.head = peagle.ParallelHead(LlamaConfig.from_dict(json.loads((pair.drafter / "config.json").read_text())))
        self.head.load_state_dict(weights | {"mask_hidden": weights["mask_hidden"][0]})

    @torch.inference_mode()
    def logits(self, drafted: Drafted) -> torch.Tensor:
        """(draft tokens, vocabulary) of a draft."""
        tokens = drafted.tokens
        ids = torch.tensor([tokens])
        states = self.target(input_ids=ids[:, :-1], output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in LAYERS], dim=-1)
        embed, start = self.target.get_input_embeddings(), torch.tensor([len(tokens) - 2])
        masked = embed(torch.tensor(MASK_TOKEN))
        rotary = LlamaRotaryEmbedding(self.target.config)
        hidden = self.head(features, embed(ids[:, 1:]), masked, start, rotary)
        return self.target.get_output_embeddings()(hidden[0, start:][: len(drafted.draft)])


@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
def test_the_drafts_are_those_of_whole_sequences(tiny: Pair, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_drafts(tiny, settings, WholeSequences(tiny).logits, monkeypatch)


MISFITS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another width": (
        lambda f: write_parallel_head(
            f,
            LlamaConfig.from_dict(json.loads((f / "config.json").read_text()) | {"hidden_size": 32, "head_dim": 8}),
            0,
        ),
        "a parallel head for a target of width 32, not 64",
    ),
    "no mask token": (lambda f: change_config(f, ptd_token_id=None), "an EAGLE-3 head other than one Llama layer"),
    "a mask token out of range": (lambda f: change_config(f, ptd_token_id=277), "mask token 277 is no token from 0 to"),
    "a mask token that is no number": (lambda f: change_config(f, ptd_token_id="a"), "mask token a is no token"),
    "an output layer of its own": (lambda f: change_config(f, tie_word_embeddings=False), "output layer of its own"),
    "no mask state": (lambda f: change_weights(f, lambda weights: weights.pop("mask_hidden")), "lack.*mask_hidden"),
    "a layer less": (lambda f: change_config(f, num_hidden_layers=1), "does not describe"),
    "a layer more": (lambda f: change_config(f, num_hidden_layers=3), "lack what its config describes"),
    "a variant": (lambda f: change_config(f, norm_before_residual=True), "norm_before_residual = True"),
    "a layer that the target lacks": (
        lambda f: change_config(f, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}),
        "reads the layers 0, 1, 2, but the target has 2",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_head_that_does_not_fit_is_refused_in_one_line(what: str, tiny: Pair) -> None:
    breaks, words = MISFITS[what]
    breaks(tiny.drafter)
    check_refused(tiny, words)


@pytest.mark.parametrize("name", ["norm.weight", "mask_hidden"])
def test_logits_that_are_not_finite_are_refused(name: str, tiny: Pair) -> None:
    change_weights(tiny.drafter, lambda weights: weights[name].mul_(1e38))
    with pytest.raises(UserError, match="no finite logits"):
        Engine(tiny.config(), FixedPlans())
