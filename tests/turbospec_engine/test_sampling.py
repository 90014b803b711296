"""Speculation leaves the sampled distribution as it is; a gate or selection that anticipates would not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.turbospec_engine.harness import (
    DEVICE,
    EveryThird,
    FixedPlans,
    MixedPlans,
    Pair,
    RandomPlans,
    Reference,
    build,
    perturbed,
    write_dflash_head,
    write_head,
    write_parallel_head,
)
from turbospec import Source, StepOutcome, StepPlan, StepView
from turbospec.policy.adaptive_verification.policy import (
    BudgetSelection,
    VllmAdaptiveVerificationConfig,
    VllmAdaptiveVerificationPolicy,
)
from turbospec_engine import Engine, SamplingParams, planning
from turbospec_engine.draft import Draft
from turbospec_engine.drafter import ParallelDrafter, sequential
from turbospec_engine.lookup import Lookup

VOCAB = 8
DRAFTED = (0, 2, 3, 5, 6)
"""Draft vocabulary of the head."""
PROMPT = [3, 1, 4]
LENGTH = 3
SAMPLES = 4000
REJECT = 1e-4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("small")
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(VOCAB)}, unk_token="w0"))
    model = build("llama", VOCAB, seed=5)
    model.model.embed_tokens.weight.data *= 0.5
    model.lm_head.weight.data *= 0.3
    model.save_pretrained(folder / "target")
    perturbed(model, 0.4).save_pretrained(folder / "drafter")
    write_head(folder / "head", model.config, DRAFTED, seed=6, initializer_range=0.05)
    write_parallel_head(folder / "parallel", model.config, seed=6, initializer_range=0.5)
    write_dflash_head(folder / "dflash", model.config, seed=3, initializer_range=0.5)
    for role in ("target", "drafter"):
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / role)
    return Pair(folder / "target", folder / "drafter")


def processed(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """One distribution, written down the slow and obvious way."""
    if params.allowed_token_ids is not None:
        banned = [token for token in range(VOCAB) if token not in params.allowed_token_ids]
        logits[banned] = -torch.inf
    p = (logits.double() / params.temperature).softmax(-1).numpy()
    order = np.argsort(-p)
    if params.top_k:
        p[order[params.top_k :]] = 0
        p /= p.sum()
    if params.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= params.top_p]] = 0
    return p / p.sum()


@torch.inference_mode()
def exact(target: Reference, params: SamplingParams) -> np.ndarray:
    """(VOCAB ** max_tokens,) probability of every output."""
    joint = np.ones(1)
    prefixes: list[list[int]] = [[]]
    for _ in range(params.max_tokens):
        logits = (
            target.model(torch.tensor([[*PROMPT, *prefix] for prefix in prefixes], device=DEVICE)).logits[:, -1].cpu()
        )
        joint = np.concatenate([joint[i] * processed(logits[i], params) for i in range(len(prefixes))])
        prefixes = [[*prefix, token] for prefix in prefixes for token in range(VOCAB)]
    return joint


def drafter_of(pair: Pair, kind: str) -> str | Path:
    folder = pair.target.parent
    return {"model": pair.drafter, "ngram": "ngram"}.get(kind, folder / kind)


def sample(
    pair: Pair,
    params: SamplingParams,
    controller: Any,
    count: int = SAMPLES,
    lookup: Lookup | None = None,
    **config: Any,
) -> np.ndarray:
    """(VOCAB ** max_tokens,) how often the engine gave every output."""
    settings = {"max_num_seqs": 128, "max_num_batched_tokens": 512, "max_model_len": 32, "max_draft": 4}
    engine = Engine(pair.config(**(settings | config)), controller, lookup=lookup)
    outputs = engine.generate([PROMPT] * count, params)
    length = params.max_tokens
    codes = [sum(token * VOCAB ** (length - 1 - i) for i, token in enumerate(output.token_ids)) for output in outputs]
    return np.bincount(codes, minlength=VOCAB**length)


def p_value(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square, with outputs expected fewer than five times pooled."""
    assert observed[probabilities == 0].sum() == 0, "an output of probability 0 was sampled"
    expected = probabilities * observed.sum()
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    return float(chisquare(observed[keep], expected[keep]).pvalue)


PARAMS = {
    "temperature": {"temperature": 0.9},
    "top-k": {"temperature": 1.3, "top_k": 4},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "top-k and top-p": {"temperature": 0.7, "top_k": 6, "top_p": 0.9},
    "allowed": {"temperature": 1.0, "allowed_token_ids": (1, 2, 5, 7)},
}


@pytest.mark.parametrize(
    ("name", "drafter"),
    [*product(PARAMS, ("model", "head", "parallel", "dflash")), ("temperature", "ngram"), ("top-p", "ngram")],
)
def test_distribution_unchanged(name: str, drafter: str, small: Pair, reference: Callable[[Path], Reference]) -> None:
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, **PARAMS[name])
    plans = RandomPlans(longest=4)
    observed = sample(small, params, plans, drafter=drafter_of(small, drafter))
    if drafter != "ngram":
        drafted = sum(int(outcome.drafted.sum()) for outcome in plans.outcomes)
        accepted = sum(int(outcome.accepted.sum()) for outcome in plans.outcomes)
        assert 0.1 * drafted < accepted < 0.95 * drafted
    assert p_value(observed, exact(reference(small.target), params)) > REJECT


@pytest.mark.parametrize("drafter", ["model", "parallel", "dflash"])
def test_drafts_of_several_tokens(drafter: str, small: Pair, reference: Callable[[Path], Reference]) -> None:
    """The prompt's step emits the first token, so that drafts of three tokens need five."""
    params = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0.9, top_k=3)
    plans = FixedPlans(longest=3)
    observed = sample(small, params, plans, drafter=drafter_of(small, drafter))
    accepted = np.concatenate([outcome.accepted for outcome in plans.outcomes])
    assert (np.bincount(accepted, minlength=4)[1:] > 50).all(), np.bincount(accepted)
    assert p_value(observed, exact(reference(small.target), params)) > REJECT


@dataclass
class ThresholdGate:
    threshold: float

    def advance(self, rows: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keep = confidence > self.threshold
        return keep, keep


@dataclass
class GatedPlans(FixedPlans):
    threshold: float = 0.5

    def plan(self, view: StepView) -> StepPlan:
        plan = super().plan(view)
        plan.gate = ThresholdGate(self.threshold)
        return plan


@dataclass
class MeanGate:
    """Ends the drafts whose confidence is below the mean of the pass: requests decide for each other."""

    def advance(self, rows: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keep = confidence >= confidence.mean()
        return keep, keep


@dataclass
class MeanGatedPlans(GatedPlans):
    def plan(self, view: StepView) -> StepPlan:
        plan = super().plan(view)
        plan.gate = MeanGate()
        return plan


@pytest.mark.parametrize(("gated", "drafter"), [(GatedPlans, "model"), (MeanGatedPlans, "model"), (GatedPlans, "head")])
def test_gate_on_the_maximum_is_lossless(
    gated: type[GatedPlans], drafter: str, small: Pair, reference: Callable[[Path], Reference]
) -> None:
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=1.0)
    seen = FixedPlans(longest=2)
    config = {"drafter": drafter_of(small, drafter)}
    sample(small, params, seen, count=200, **config)
    typical = np.nanmedian(np.concatenate([o.confidence.ravel() for o in seen.outcomes if o.confidence is not None]))
    plans = gated(longest=2, threshold=float(typical))
    observed = sample(small, params, plans, **config)
    proposed = sum(int(outcome.proposed.sum()) for outcome in plans.outcomes)
    drafted = sum(int(outcome.drafted.sum()) for outcome in plans.outcomes)
    assert 0.1 * proposed < drafted < 0.9 * proposed, "the gate must have closed now and then"
    assert p_value(observed, exact(reference(small.target), params)) > REJECT


class HalfVerified:
    """vLLM's rule with a budget of half of the draft tokens, so that in every step some are not verified."""

    def __init__(self) -> None:
        config = VllmAdaptiveVerificationConfig(version=1, policy="vllm_adaptive_verification")
        self.policy = VllmAdaptiveVerificationPolicy(config, None)
        self.outcomes: list[StepOutcome] = []

    def plan(self, view: StepView) -> StepPlan:
        plan = self.policy.plan(view)
        if plan.selection is not None:
            slots, _ = self.policy._slots.lookup(view.request_ids)
            plan.selection = BudgetSelection(self.policy, view.step, slots, int(plan.draft_lengths.sum()) // 2)
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        self.policy.observe(outcome)
        self.outcomes.append(outcome)


@pytest.mark.parametrize(
    ("emit", "drafter"), [("before_draft", "model"), ("after_draft", "model"), ("before_draft", "parallel")]
)
def test_selecting_by_survival_is_lossless(
    emit: str, drafter: str, small: Pair, reference: Callable[[Path], Reference]
) -> None:
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=1.0)
    plans = HalfVerified()
    observed = sample(small, params, plans, emit=emit, drafter=drafter_of(small, drafter))
    proposed = sum(int(outcome.proposed.sum()) for outcome in plans.outcomes)
    drafted = sum(int(outcome.drafted.sum()) for outcome in plans.outcomes)
    assert 0.1 * proposed < drafted < 0.9 * proposed, "some drafts must have been verified in part"
    assert p_value(observed, exact(reference(small.target), params)) > REJECT


@pytest.mark.parametrize("plans", [GatedPlans(longest=2, threshold=0.3), HalfVerified()])
def test_confidence_of_the_drawn_token_is_caught(
    plans: Any, small: Pair, reference: Callable[[Path], Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a gate or selection shown the drawn token's own probability, likely tokens would be verified more often."""
    choose = sequential.choose

    def anticipating(*args: Any) -> Any:
        tokens, _, distributions = choose(*args)
        return tokens, distributions.cpu().numpy()[np.arange(len(tokens)), tokens].astype(float), distributions

    monkeypatch.setattr(sequential, "choose", anticipating)
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=1.0)
    observed = sample(small, params, plans, 3 * SAMPLES)
    assert p_value(observed, exact(reference(small.target), params)) < REJECT


def test_a_position_judged_by_the_distribution_of_another_is_caught(
    small: Pair, reference: Callable[[Path], Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = ParallelDrafter.propose

    def misjudged(*args: Any) -> Draft:
        draft = propose(*args)
        assert draft.distribution_index is not None
        drawn = draft.distribution_index >= 0
        draft.distribution_index = np.where(drawn, draft.distribution_index[:, :1], -1)
        return draft

    monkeypatch.setattr(ParallelDrafter, "propose", misjudged)
    params = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0.9, top_k=3)
    observed = sample(small, params, FixedPlans(longest=3), 3 * SAMPLES, drafter=drafter_of(small, "parallel"))
    assert p_value(observed, exact(reference(small.target), params)) < REJECT


def test_output_does_not_depend_on_neighbours(small: Pair) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=7, ignore_eos=True)
    engine = Engine(small.config(max_draft=4, max_model_len=64), FixedPlans(longest=3))
    alone = engine.generate([PROMPT], params)[0].token_ids
    other = SamplingParams(max_tokens=12, temperature=1.5, top_k=3, ignore_eos=True)
    in_batch = engine.generate([[1, 2], PROMPT, [5, 5, 5]], [other, params, other])
    assert in_batch[1].token_ids == alone


def test_requests_without_a_seed_differ(small: Pair) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True)
    engine = Engine(small.config(max_draft=4, max_model_len=64), FixedPlans(longest=3))
    first, second = engine.generate([PROMPT, PROMPT], params)
    assert first.token_ids != second.token_ids


@dataclass
class GatedMixture(MixedPlans):
    """Drafts of two sources, the drafter's ended by a gate."""

    def plan(self, view: StepView) -> StepPlan:
        plan = super().plan(view)
        plan.gate = MeanGate()
        return plan


class AppendsTwo(FixedPlans):
    """`longest` tokens of the drafter, and up to two more of the look-up."""

    def plan(self, view: StepView) -> StepPlan:
        plan = super().plan(view)
        plan.append_limits = np.full(view.size, 2)
        return plan


class GatedAppending(AppendsTwo):
    """Only drafts that a gate does not end are appended to."""

    def plan(self, view: StepView) -> StepPlan:
        plan = super().plan(view)
        plan.gate = MeanGate()
        return plan


class HalfVerifiedMixture(MixedPlans):
    """Drafts of two sources, of which the drafter's likeliest tokens are verified."""

    def plan(self, view: StepView) -> StepPlan:
        plan = super().plan(view)
        plan.selection = ConfidentPrefix()
        return plan


class ConfidentPrefix:
    def select(self, proposed: np.ndarray, confidence: np.ndarray) -> np.ndarray:
        confident = np.logical_and.accumulate(np.nan_to_num(confidence) > 0.3, axis=1).sum(1)
        return np.minimum(proposed, confident)


@pytest.mark.parametrize(
    ("name", "drafter", "plans"),
    [
        *product(PARAMS, ("model", "head"), (MixedPlans,)),
        ("top-p", "parallel", MixedPlans),
        ("top-p", "dflash", MixedPlans),
        ("temperature", "model", GatedMixture),
        ("temperature", "model", HalfVerifiedMixture),
    ],
)
def test_mixtures_of_sources(
    name: str, drafter: str, plans: type[MixedPlans], small: Pair, reference: Callable[[Path], Reference]
) -> None:
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, **PARAMS[name])
    played = plans(longest=4)
    observed = sample(small, params, played, drafter=drafter_of(small, drafter), lookup=EveryThird(VOCAB))
    for source in Source:
        drafted, accepted = played.counts(source)
        assert 0.02 * drafted < accepted < 0.95 * drafted
    assert p_value(observed, exact(reference(small.target), params)) > REJECT


FOUR_TOKENS = SamplingParams(max_tokens=4, ignore_eos=True, temperature=1.3, top_k=5)
"""The prompt's step emits the first token: one token of the drafter and one appended need as many as this."""


@pytest.mark.parametrize(
    ("drafter", "plans"),
    [
        ("model", AppendsTwo),
        ("head", AppendsTwo),
        ("parallel", AppendsTwo),
        ("dflash", AppendsTwo),
        ("model", GatedAppending),
    ],
)
def test_appended_tokens(
    drafter: str, plans: type[AppendsTwo], small: Pair, reference: Callable[[Path], Reference]
) -> None:
    played = plans(longest=1)
    observed = sample(small, FOUR_TOKENS, played, drafter=drafter_of(small, drafter), lookup=EveryThird(VOCAB))
    counts = [(each.drafted - each.appended, each.appended, each.accepted) for each in played.outcomes]
    accepted = sum(int(np.maximum(accepted - own, 0)[own > 0].sum()) for own, _, accepted in counts)
    assert 20 < accepted < 0.95 * sum(int(appended.sum()) for _, appended, _ in counts)
    assert p_value(observed, exact(reference(small.target), FOUR_TOKENS)) > REJECT


def test_appended_tokens_that_are_accepted_without_a_draw_are_caught(
    small: Pair, reference: Callable[[Path], Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_draws(draws: np.ndarray, batch: Any, drafted: np.ndarray, appended: np.ndarray) -> np.ndarray:
        return np.pad(draws, ((0, 0), (0, int(drafted.max()))))

    monkeypatch.setattr(planning, "_with_draws", no_draws)
    observed = sample(small, FOUR_TOKENS, AppendsTwo(longest=1), lookup=EveryThird(VOCAB))
    assert p_value(observed, exact(reference(small.target), FOUR_TOKENS)) < REJECT


def test_copies_verified_as_if_the_drafter_had_drawn_them_are_caught(
    small: Pair, reference: Callable[[Path], Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_copies = Draft.add_copies

    def drawn(draft: Draft, *args: Any) -> None:
        add_copies(draft, *args)
        if draft.distribution_index is not None:
            draft.distribution_index = np.maximum(draft.distribution_index, 0)

    monkeypatch.setattr(Draft, "add_copies", drawn)
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=1.0)
    observed = sample(small, params, MixedPlans(longest=4), 3 * SAMPLES, lookup=EveryThird(VOCAB))
    assert p_value(observed, exact(reference(small.target), params)) < REJECT


def test_greedy_and_sampled_requests_of_two_sources_in_one_batch(small: Pair) -> None:
    sampled = SamplingParams(max_tokens=12, temperature=1.0, seed=7, ignore_eos=True)
    greedy = SamplingParams(max_tokens=12, ignore_eos=True)
    config = small.config(max_draft=4, max_model_len=64)
    alone = Engine(config, FixedPlans(longest=0)).generate([PROMPT], greedy)[0].token_ids
    engine = Engine(config, MixedPlans(longest=4), lookup=EveryThird(VOCAB))
    outputs = engine.generate([[1, 2], PROMPT, [5, 5, 5], PROMPT], [sampled, greedy, sampled, greedy])
    assert outputs[1].token_ids == outputs[3].token_ids == alone
