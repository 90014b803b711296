"""The parallel drafter: the head's logits, greedy output, passes and KV lag, and heads that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.turbospec_engine.harness import (
    FixedPlans,
    Pair,
    RandomPlans,
    Reference,
    assert_blocks_sound,
    random_prompts,
    write_parallel_head,
)
from training import peagle
from turbospec import UserError
from turbospec_engine import Engine, Models, SamplingParams, sizing
from turbospec_engine.draft import Draft
from turbospec_engine.drafter import ParallelDrafter
from turbospec_engine.request import Request

MAX_TOKENS = 40
LONGEST = 6
MASK_TOKEN = 1
LAYERS = [1, 0, 1]
TIGHT = {"num_blocks": 20, "block_size": 8, "max_num_batched_tokens": 16}
"""Prefill in chunks, and too few KV blocks for all requests, so that some are preempted."""


@pytest.fixture
def tiny(llama: Pair, tmp_path: Path) -> Pair:
    """The tests' usual target, and a random head for it."""
    write_parallel_head(tmp_path / "head", LlamaConfig.from_pretrained(llama.target), seed=0)
    return Pair(llama.target, tmp_path / "head")


@dataclass
class Drafted:
    """What a request was drafted from, and its draft."""

    tokens: list[int]
    draft: list[int]


class Recorded:
    """Keeps what the drafter proposes."""

    def __init__(self, drafter: ParallelDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drafts: list[Draft] = []
        self.rows: list[Drafted] = []
        self.passes: list[int] = []
        """Tokens of each."""
        propose, run_pass = drafter.propose, drafter._logits

        def recorded_propose(requests: list[Request], *rest: Any) -> Draft:
            draft = propose(requests, *rest)
            self.drafts.append(draft)
            self.rows += [
                Drafted(request.tokens[: request.num_tokens].tolist(), draft.tokens[row, : draft.drafted[row]].tolist())
                for row, request in enumerate(requests)
                if draft.drafted[row]
            ]
            return draft

        def recorded_pass(tokens: np.ndarray, *rest: Any) -> torch.Tensor:
            self.passes.append(len(tokens))
            return run_pass(tokens, *rest)

        monkeypatch.setattr(drafter, "propose", recorded_propose)
        monkeypatch.setattr(drafter, "_logits", recorded_pass)


class WholeSequences:
    """The head as training computes it: whole sequences, without a cache."""

    def __init__(self, pair: Pair) -> None:
        self.target = Reference(pair.target).model.cpu()
        weights = load_file(pair.drafter / "model.safetensors")
        self.head = peagle.ParallelHead(LlamaConfig.from_dict(json.loads((pair.drafter / "config.json").read_text())))
        self.head.load_state_dict(weights | {"mask_hidden": weights["mask_hidden"][0]})

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """(peagle.POSITIONS, vocabulary) of the draft after some tokens."""
        ids = torch.tensor([tokens])
        states = self.target(input_ids=ids[:, :-1], output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in LAYERS], dim=-1)
        embed, start = self.target.get_input_embeddings(), torch.tensor([len(tokens) - 2])
        masked = embed(torch.tensor(MASK_TOKEN))
        rotary = LlamaRotaryEmbedding(self.target.config)
        hidden = self.head(features, embed(ids[:, 1:]), masked, start, rotary)
        return self.target.get_output_embeddings()(hidden[0, start:])


@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
def test_the_drafts_are_those_of_whole_sequences(tiny: Pair, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After chunked prefill, preemption, steps without drafts, and drafts accepted in part."""
    plans = RandomPlans(longest=LONGEST)
    engine = Engine(tiny.config(**settings), plans)
    assert isinstance(engine.drafter, ParallelDrafter)
    recorded = Recorded(engine.drafter, monkeypatch)
    prompts = random_prompts(6, longest=60, seed=1)
    engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True))

    assert bool(engine.scheduler.num_preemptions) == bool(settings)
    assert any(outcome.catch_up_tokens for outcome in plans.outcomes)
    whole = WholeSequences(tiny)
    assert {len(row.draft) for row in recorded.rows} == set(range(1, LONGEST + 1))
    for row in recorded.rows:
        logits = whole.logits(row.tokens)[: len(row.draft)]
        short_by = logits.amax(-1) - logits[torch.arange(len(row.draft)), torch.tensor(row.draft)]
        assert short_by.max() < 1e-3


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


def test_one_pass_drafts_all_tokens_and_catches_up(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = FixedPlans(longest=0)
    engine = Engine(tiny.config(max_draft=3), plans)
    assert isinstance(engine.drafter, ParallelDrafter)
    recorded = Recorded(engine.drafter, monkeypatch)
    engine.add_request([5] * 20, SamplingParams(max_tokens=40, ignore_eos=True))
    for _ in range(5):
        engine.step()
    assert recorded.passes == []
    plans.longest = 3
    engine.step()
    assert plans.views[-1].parallel_drafter
    # 20 prompt tokens and 5 emitted ones, of which the first is not fed and 1 + 3 are ordinary.
    assert plans.views[-1].drafter_lag_tokens.tolist() == [20]
    assert plans.outcomes[-1].catch_up_tokens == 20
    assert recorded.passes == [24 + 2]
    assert recorded.drafts[-1].draft_rows.tolist() == [1]
    emitted = int(plans.outcomes[-1].emitted[0])
    engine.step()
    assert plans.views[-1].drafter_lag_tokens.tolist() == [0]
    assert recorded.passes[1:] == [emitted + 2]


def test_no_position_depends_on_the_tokens_drawn_before_it(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny.config(), FixedPlans(longest=4))
    assert isinstance(engine.drafter, ParallelDrafter)
    recorded = Recorded(engine.drafter, monkeypatch)
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
    assert isinstance(engine.drafter, ParallelDrafter)
    recorded = Recorded(engine.drafter, monkeypatch)
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
    assert isinstance(engine.drafter, ParallelDrafter)
    store = engine.target.store
    tensors = [*store.keys, *store.values, engine.drafter.hidden_states._states]
    assert sum(tensor.nbytes for tensor in tensors) == sizing._bytes_per_token(engine.config, engine.models) * 4 * 8


def change_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


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
    with pytest.raises(UserError, match=words) as refusal:
        Models.load(tiny.config())
    message = str(refusal.value)
    assert str(tiny.drafter) in message
    assert ";" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["norm.weight", "mask_hidden"])
def test_logits_that_are_not_finite_are_refused(name: str, tiny: Pair) -> None:
    change_weights(tiny.drafter, lambda weights: weights[name].mul_(1e38))
    with pytest.raises(UserError, match="no finite logits"):
        Engine(tiny.config(), FixedPlans())
