"""Tiny random checkpoints, controllers that plan at random, and the reference that outputs are held against."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from turbospec import Source, StepOutcome, StepPlan, StepView
from turbospec.interface import IntArray
from turbospec_engine import Engine, EngineConfig
from turbospec_engine.blocks import PartAllocator
from turbospec_engine.dflash_head import DFlashConfig, DFlashHead
from turbospec_engine.eagle3_head import Eagle3Config, Eagle3Head
from turbospec_engine.lookup import Found, Lookup
from turbospec_engine.parallel_head import ParallelConfig, ParallelHead
from turbospec_engine.request import Request
from turbospec_engine.request_blocks import RequestBlocks

DEVICE = os.environ.get("TURBOSPEC_TEST_DEVICE", "cpu")
NEAR_TIE = 1e-4
"""A greedy difference counts as a pass only where the two tokens' logits are this close."""

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["the cat sat on the mat and the dog sat on the log"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def build(architecture: str, vocab_size: int, seed: int) -> Any:
    torch.manual_seed(seed)
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, num_key_value_heads=4, **SHAPE))
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocab_size, num_key_value_heads=2, **SHAPE))


def perturbed(model: Any, amount: float) -> Any:
    """The same model with noise on its weights: a drafter that is right now and then."""
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += amount * weight.std() * torch.randn(weight.shape, generator=noise)
    return model


def write_head(folder: Path, target: LlamaConfig, drafted: Sequence[int], seed: int, **fields: Any) -> None:
    """A random EAGLE-3 head for a target with at least two layers; `drafted` is the draft vocabulary."""
    torch.manual_seed(seed)
    layers = {"eagle_aux_hidden_state_layer_ids": [1, 0]}
    described = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": len(drafted)}
    config = target.to_dict() | described | {"tie_word_embeddings": False, "eagle_config": layers} | fields
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    head = Eagle3Head(Eagle3Config.of(LlamaConfig.from_dict(config)))
    weights = head.state_dict()
    weights["d2t"] = torch.tensor(drafted) - torch.arange(len(drafted))
    weights["t2d"][torch.tensor(drafted)] = True
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def write_parallel_head(folder: Path, target: LlamaConfig, seed: int, **fields: Any) -> None:
    """A random parallel head of two layers for a target with at least two."""
    torch.manual_seed(seed)
    layers = {"eagle_aux_hidden_state_layer_ids": [1, 0, 1]}
    described = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 2, "ptd_token_id": 1}
    config = target.to_dict() | described | {"tie_word_embeddings": True, "eagle_config": layers} | fields
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    head = ParallelHead(ParallelConfig.of(LlamaConfig.from_dict(config)))
    weights = head.state_dict() | {"mask_hidden": torch.randn(head.mask_hidden.shape)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def write_dflash_head(folder: Path, target: LlamaConfig, seed: int, **fields: Any) -> None:
    """A random DFlash head of two layers for a target with at least two."""
    torch.manual_seed(seed)
    own = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2}
    named = {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, -1, 0]}}
    config = target.to_dict() | own | named | {"tie_word_embeddings": True, "num_key_value_heads": 2} | fields
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    head = DFlashHead(DFlashConfig.of(Qwen3Config.from_dict(config)))
    save_file(head.state_dict(), folder / "model.safetensors", {"format": "pt"})


@dataclass(frozen=True)
class Pair:
    target: Path
    drafter: Path

    def config(self, **overrides: Any) -> EngineConfig:
        settings: dict[str, Any] = {"device": DEVICE, "max_model_len": 256, "max_num_seqs": 8, "max_draft": 6}
        return EngineConfig(self.target, **({"drafter": self.drafter} | settings | overrides))


@dataclass
class RandomPlans:
    """Drafts a random length for every request in every step."""

    seed: int = 0
    longest: int = 6
    views: list[StepView] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    outcomes: list[StepOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def lengths(self, view: StepView) -> np.ndarray:
        if self.rng.random() < 0.2:
            return np.zeros(view.size, np.int64)
        return self.rng.integers(0, self.longest + 1, view.size)

    def plan(self, view: StepView) -> StepPlan:
        self.views.append(view)
        self.plans.append(StepPlan(np.minimum(self.lengths(view), view.draft_limits)))
        return self.plans[-1]

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


@dataclass
class FixedPlans(RandomPlans):
    """Drafts `longest` tokens for every request in every step."""

    def lengths(self, view: StepView) -> np.ndarray:
        return np.full(view.size, self.longest)


@dataclass
class MixedPlans(RandomPlans):
    """Drafts from the drafter or the look-up, at random for every request in every step, with a random length."""

    longest: int = 15

    def plan(self, view: StepView) -> StepPlan:
        assert view.lookup is not None
        sources = self.rng.integers(0, 2, view.size)
        if self.rng.random() < 0.3:
            sources[:] = self.rng.integers(0, 2)
        limits = np.where(sources == Source.LOOKUP, view.lookup.lengths, view.draft_limits)
        self.views.append(view)
        self.plans.append(StepPlan(np.minimum(self.lengths(view), limits), sources=sources))
        return self.plans[-1]

    def counts(self, source: Source) -> tuple[int, int]:
        """Draft tokens verified and accepted of one source."""
        drafted = accepted = 0
        for outcome in self.outcomes:
            assert outcome.sources is not None
            drafted += int(outcome.drafted[outcome.sources == source].sum())
            accepted += int(outcome.accepted[outcome.sources == source].sum())
        return drafted, accepted


@dataclass
class AppendingPlans(MixedPlans):
    """The same, and the look-up appends up to a random number of tokens to each draft of the drafter."""

    def plan(self, view: StepView) -> StepPlan:
        plan = super().plan(view)
        plan.append_limits = self.rng.integers(0, min(4, view.max_draft) + 1, view.size)
        return plan

    def appended(self) -> tuple[int, int]:
        """Appended tokens verified and accepted."""
        verified = accepted = 0
        for outcome in self.outcomes:
            assert outcome.appended is not None
            verified += int(outcome.appended.sum())
            accepted += int(np.maximum(outcome.accepted - (outcome.drafted - outcome.appended), 0).sum())
        return verified, accepted


def look_up(lookup: Lookup, request: Any, limit: int, draft: Sequence[int] = ()) -> tuple[list[int], float]:
    """Tokens and score of one request's search."""
    found = lookup.find([request], np.array([limit]), [draft] if draft else None)
    return found.tokens[0, : found.lengths[0]].tolist(), float(found.scores[0])


class EveryThird:
    """A look-up that finds something for every text: each token is the last one plus three. It seldom is right."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.finished: list[int] = []

    def find(
        self, requests: Sequence[Request], limits: IntArray, drafts: Sequence[Sequence[int]] | None = None
    ) -> Found:
        drafts = [()] * len(requests) if drafts is None else drafts
        found = [self.continued(*each) for each in zip(requests, limits.tolist(), drafts, strict=True)]
        return Found.of(found, np.where(limits, 2.0, 0.0).tolist())

    def continued(self, request: Request, limit: int, draft: Sequence[int]) -> list[int]:
        last = int(draft[-1] if len(draft) else request.tokens[request.num_tokens - 1])
        return [(last + 3 * place) % self.vocab_size for place in range(1, limit + 1)]

    def finish(self, request: Request) -> None:
        self.finished.append(request.row_id)


class Answers(EveryThird):
    """A look-up that knows the outputs, and is wrong at every fifth token or so."""

    def __init__(self, vocab_size: int, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> None:
        super().__init__(vocab_size)
        self.texts = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]

    def continued(self, request: Request, limit: int, draft: Sequence[int]) -> list[int]:
        text, first = self.texts[request.row_id], request.num_tokens + len(draft)
        return [token + (token + place) % 5 // 4 for place, token in enumerate(text[first : first + limit])]


@dataclass
class Comparison:
    equal: int = 0
    near_ties: int = 0
    different: list[int] = field(default_factory=list)


class Reference:
    """Greedy outputs of transformers' own `generate`."""

    def __init__(self, checkpoint: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).to(DEVICE).eval()

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)], device=DEVICE)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        return out[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def gap(self, prompt: Sequence[int], output: Sequence[int], first: int, second: int) -> float:
        """Difference of two tokens' logits after the prompt and what both outputs share."""
        logits = self.model(torch.tensor([[*prompt, *output]], device=DEVICE)).logits[0, -1]
        return abs(float(logits[first] - logits[second]))

    def compare(
        self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], max_tokens: int
    ) -> Comparison:
        result = Comparison()
        for index, (prompt, ours) in enumerate(zip(prompts, outputs, strict=True)):
            theirs = self.generate(prompt, max_tokens)
            ours = list(ours)
            if ours == theirs:
                result.equal += 1
                continue
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            if at is not None and self.gap(prompt, ours[:at], ours[at], theirs[at]) <= NEAR_TIE:
                result.near_ties += 1
            else:
                result.different.append(index)
        return result


def random_prompts(count: int, longest: int, vocab_size: int = 257, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab_size, length).tolist() for length in rng.integers(1, longest + 1, count)]


def assert_blocks_sound(engine: Engine) -> None:
    """Every block is free or has one owner: a request, or the drafter, which divides it among requests."""
    blocks = engine.scheduler.blocks
    assert_owned_once(blocks, list(engine._requests.values()))


def assert_owned_once(blocks: RequestBlocks, requests: Sequence[Any]) -> None:
    """No block is leaked, and none is held twice, by requests or by the drafter that divides it."""
    owned = [block for request in requests for block in request.block_ids]
    parts = [part for request in requests for part in request.draft_block_ids]
    assert len(parts) == len(set(parts))
    if isinstance(blocks.drafter, PartAllocator):
        divided = {part % blocks.target.num_blocks for part in parts}
        assert blocks.drafter.num_spare == len(divided) * blocks.drafter.parts - len(parts)
        owned += divided
    assert len(owned) == len(set(owned))
    assert blocks.target.num_free + len(owned) == blocks.target.num_blocks
