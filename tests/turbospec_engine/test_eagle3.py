"""The EAGLE-3 drafter: the head's logits, greedy output, KV lag, and pairs that do not fit."""

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
    DEVICE,
    FixedPlans,
    Pair,
    RandomPlans,
    Reference,
    assert_blocks_sound,
    random_prompts,
    write_head,
)
from training.eagle3 import STEPS, Eagle3Head
from turbospec import UserError
from turbospec_engine import Engine, EngineConfig, Models, SamplingParams, sizing
from turbospec_engine.attention import RaggedBatch
from turbospec_engine.drafter import Eagle3Drafter
from turbospec_engine.request import Request

MODELS = Path(__file__).parents[2] / "models"
MAX_TOKENS = 40
DRAFTED = range(0, 200, 2)
LONGEST = 6

shipped = pytest.mark.skipif(not (MODELS / "eagle3/model.safetensors").is_file(), reason="models/ holds no checkpoints")


def shipped_pair(**settings: Any) -> EngineConfig:
    fixed = {"drafter": MODELS / "eagle3", "max_model_len": 256, "max_num_seqs": 4, "max_draft": LONGEST}
    return EngineConfig(MODELS / "target", device=DEVICE, **(fixed | settings))


TIGHT = {"num_blocks": 20, "block_size": 8, "max_num_batched_tokens": 16}
"""Prefill in chunks, and too few KV blocks for all requests, so that some are preempted."""


@dataclass
class Fed:
    """A row of a pass of the drafter."""

    tokens: list[int]
    """The request's tokens and the draft tokens after them that the pass has read."""
    num_tokens: int
    """Of these, the request's."""
    logits: torch.Tensor
    """(vocabulary,)."""


class Recorded:
    """Keeps what the drafter's passes read and return."""

    def __init__(self, drafter: Eagle3Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[Fed] = []
        self.passes: list[int] = []
        propose, run_pass = drafter.propose, drafter._logits
        current: list[Fed] = []

        def recorded_propose(requests: list[Request], lengths: np.ndarray, *rest: Any) -> Any:
            drafting = [request for request, length in zip(requests, lengths, strict=True) if length]
            current[:] = [Fed(r.tokens[: r.num_tokens].tolist(), r.num_tokens, torch.empty(0)) for r in drafting]
            return propose(requests, lengths, *rest)

        def recorded_pass(
            tokens: np.ndarray, batch: RaggedBatch, target_tables: np.ndarray, continued: np.ndarray | None
        ) -> torch.Tensor:
            logits = run_pass(tokens, batch, target_tables, continued)
            self.passes.append(len(tokens))
            if continued is None and batch.context_lens.tolist() != [fed.num_tokens - 1 for fed in current]:
                return logits  # of a pass that catches up
            if continued is not None:
                before = [current[row] for row in continued]
                current[:] = [
                    Fed([*fed.tokens, int(token)], fed.num_tokens, torch.empty(0))
                    for fed, token in zip(before, tokens, strict=True)
                ]
            for fed, row in zip(current, logits.cpu(), strict=True):
                fed.logits = row
            self.rows += current
            return logits

        monkeypatch.setattr(drafter, "propose", recorded_propose)
        monkeypatch.setattr(drafter, "_logits", recorded_pass)


class WholeSequences:
    """The head as training computes it: whole sequences, without a cache."""

    def __init__(self) -> None:
        self.target = Reference(MODELS / "target").model.cpu()
        weights = load_file(MODELS / "eagle3/model.safetensors")
        self.token_ids = torch.arange(len(weights["d2t"])) + weights.pop("d2t")
        del weights["t2d"]
        self.head = Eagle3Head(self.target.config)
        self.head.load_state_dict({name: weight.float() for name, weight in weights.items()})
        self.layers = json.loads((MODELS / "eagle3/config.json").read_text())["eagle_aux_hidden_state_layer_ids"]

    @torch.inference_mode()
    def logits(self, fed: Fed) -> torch.Tensor:
        """(draft vocabulary,) logits after the last token that a row has read."""
        depth, length = len(fed.tokens) - fed.num_tokens, fed.num_tokens - 1
        tokens = torch.tensor([fed.tokens + [0] * (STEPS - 1 - depth)])
        states = self.target(input_ids=tokens[:, :length], output_hidden_states=True).hidden_states
        features = torch.cat([states[layer] for layer in self.layers], dim=-1)
        embedded = self.target.get_input_embeddings()(tokens[:, 1:])
        predicted = self.head.predictions(features, embedded, LlamaRotaryEmbedding(self.target.config))
        return list(predicted)[depth][0, -1]


@shipped
@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
def test_the_logits_are_those_of_whole_sequences(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After chunked prefill, preemption, steps without drafts, and drafts accepted in part."""
    plans = RandomPlans(longest=STEPS)
    engine = Engine(shipped_pair(**settings), plans)
    assert isinstance(engine.drafter, Eagle3Drafter)
    recorded = Recorded(engine.drafter, monkeypatch)
    engine.generate(random_prompts(6, longest=60, vocab_size=3000, seed=1), SamplingParams(max_tokens=MAX_TOKENS))

    assert bool(engine.scheduler.num_preemptions) == bool(settings)
    assert any(outcome.catch_up_tokens for outcome in plans.outcomes)
    whole = WholeSequences()
    chosen = np.random.default_rng(0).permutation(len(recorded.rows))[:80]
    assert {len(recorded.rows[row].tokens) - recorded.rows[row].num_tokens for row in chosen} == set(range(STEPS))
    for row in chosen:
        fed = recorded.rows[row]
        torch.testing.assert_close(fed.logits[whole.token_ids], whole.logits(fed), atol=2e-3, rtol=1e-3)
        assert int(torch.isfinite(fed.logits).sum()) == len(whole.token_ids)


@shipped
@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
@pytest.mark.parametrize("settings", [{}, TIGHT], ids=["roomy", "tight"])
def test_greedy_output_is_the_targets(settings: Any, emit: str, reference: Callable[[Path], Reference]) -> None:
    plans = RandomPlans(2, longest=LONGEST)
    engine = Engine(shipped_pair(emit=emit, **settings), plans)
    prompts = random_prompts(8, longest=60, vocab_size=3000, seed=3)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    compared = reference(MODELS / "target").compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert compared.near_ties <= 1
    assert bool(engine.scheduler.num_preemptions) == bool(settings)
    drafted = sum(int(outcome.drafted.sum()) for outcome in plans.outcomes)
    accepted = sum(int(outcome.accepted.sum()) for outcome in plans.outcomes)
    assert 0.2 * drafted < accepted < drafted
    assert_blocks_sound(engine)
    assert engine.allocator.num_free == engine.allocator.num_blocks


@pytest.fixture
def tiny(llama: Pair, tmp_path: Path) -> Pair:
    """The tests' usual target, and a random head for it."""
    write_head(tmp_path / "head", LlamaConfig.from_pretrained(llama.target), DRAFTED, seed=0)
    return Pair(llama.target, tmp_path / "head")


def test_off_runs_no_pass_and_drafting_catches_up(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = FixedPlans(longest=0)
    engine = Engine(tiny.config(max_draft=3), plans)
    assert isinstance(engine.drafter, Eagle3Drafter)
    recorded = Recorded(engine.drafter, monkeypatch)
    engine.add_request([5] * 20, SamplingParams(max_tokens=40, ignore_eos=True))
    for _ in range(5):
        engine.step()
    assert recorded.passes == []
    plans.longest = 2
    engine.step()
    # 20 prompt tokens and 5 emitted ones, of which the first is not fed and 1 + 3 are ordinary.
    assert plans.views[-1].drafter_lag_tokens.tolist() == [20]
    assert plans.outcomes[-1].catch_up_tokens == 20
    assert recorded.passes == [24, 1]
    emitted = int(plans.outcomes[-1].emitted[0])
    engine.step()
    assert plans.views[-1].drafter_lag_tokens.tolist() == [0]
    assert recorded.passes[2] == emitted


def test_hidden_states_are_kept_only_for_a_head(tiny: Pair, llama: Pair) -> None:
    assert Engine(tiny.config(), FixedPlans()).target.hidden_states is not None
    for drafter in (llama.drafter, "ngram", None):
        assert Engine(llama.config(drafter=drafter), FixedPlans()).target.hidden_states is None


def test_the_memory_of_a_block_is_what_is_allocated(tiny: Pair) -> None:
    engine = Engine(tiny.config(num_blocks=4, block_size=8), FixedPlans())
    assert isinstance(engine.drafter, Eagle3Drafter)
    store = engine.target.store
    tensors = [*store.keys, *store.values, engine.drafter.hidden_states._states]
    assert sum(tensor.nbytes for tensor in tensors) == sizing._bytes_per_token(engine.config, engine.models) * 4 * 8
    assert {key.untyped_storage().data_ptr() for key in engine.drafter.store.keys} == {
        store.keys[0].untyped_storage().data_ptr()
    }


def test_a_head_needs_no_tokenizer_but_not_another_one(tiny: Pair) -> None:
    assert not (tiny.drafter / "tokenizer.json").exists()
    assert Models.load(tiny.config()).drafter is not None
    tokenizer = json.loads((tiny.target / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second, *_ = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tiny.drafter / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tiny.drafter / "tokenizer_config.json").write_text((tiny.target / "tokenizer_config.json").read_text())
    with pytest.raises(UserError, match="vocabulary differs"):
        Models.load(tiny.config())


def change_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rewrite(folder: Path, **fields: object) -> None:
    """The head of a target with other sizes."""
    target = LlamaConfig.from_dict(json.loads((folder / "config.json").read_text()) | fields)
    write_head(folder, target, DRAFTED, seed=0)


def forget_layers(folder: Path) -> None:
    """Leave the layers to the engine, which then reads three."""
    change_config(folder, eagle_config=None)
    weights = load_file(folder / "model.safetensors")
    weights["fc.weight"] = torch.zeros(64, 3 * 64)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_map(folder: Path, name: str) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[name][0] = ~weights[name][0]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


MISFITS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another width": (lambda f: rewrite(f, hidden_size=32, head_dim=8), "width 32, not 64"),
    "another vocabulary": (lambda f: rewrite(f, vocab_size=512), "vocabulary 512, not 277"),
    "a layer that the target lacks": (
        lambda f: change_config(f, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2]}),
        "reads the layers 0, 2, but the target has 2",
    ),
    "layers by default of a deeper target": (
        forget_layers,
        "reads the layers 2, 1, -1",
    ),
    "layers that are no numbers": (
        lambda f: change_config(f, eagle_config={"eagle_aux_hidden_state_layer_ids": ["a"]}),
        "no list of layers",
    ),
    "another number of layers": (
        lambda f: change_config(f, eagle_config={"eagle_aux_hidden_state_layer_ids": [0]}),
        "other shapes",
    ),
    "a variant": (lambda f: change_config(f, norm_before_residual=True), "norm_before_residual = True"),
    "two layers": (lambda f: change_config(f, num_hidden_layers=2), "one Llama layer"),
    "another map": (lambda f: change_map(f, "d2t"), "name different tokens"),
    "another mask": (lambda f: change_map(f, "t2d"), "name different tokens"),
    "an older EAGLE": (lambda f: change_config(f, architectures=["EagleLlamaForCausalLM"]), "an EAGLE head"),
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


def test_logits_that_are_not_finite_are_refused(tiny: Pair) -> None:
    weights = load_file(tiny.drafter / "model.safetensors")
    weights["lm_head.weight"] *= 1e38
    weights["norm.weight"] *= 1e38
    save_file(weights, tiny.drafter / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="no finite logits"):
        Engine(tiny.config(), FixedPlans())


def test_a_head_is_no_target(tiny: Pair) -> None:
    with pytest.raises(UserError, match="cannot run as target"):
        Models.load(EngineConfig(tiny.drafter, device=DEVICE))
