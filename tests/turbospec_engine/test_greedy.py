"""Greedy output equals transformers' own, whatever is drafted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.turbospec_engine.harness import Pair, RandomPlans, Reference, assert_blocks_sound, random_prompts
from turbospec import StepOutcome, StepPlan, StepView
from turbospec.policy import load_controller
from turbospec_engine import Engine, SamplingParams

MAX_TOKENS = 24


class Outcomes:
    """Keeps every step's plan and outcome."""

    def __init__(self) -> None:
        self.steps: list[tuple[StepPlan, StepOutcome]] = []

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.steps.append((plan, outcome))


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_random_plans(
    architecture: str, emit: str, make_pair: Callable[..., Pair], reference: Callable[[Path], Reference]
) -> None:
    pair = make_pair(architecture)
    plans = RandomPlans()
    engine = Engine(pair.config(emit=emit, max_num_batched_tokens=32), plans)
    prompts = random_prompts(14, longest=60)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    compared = reference(pair.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert compared.near_ties <= 1
    drafted = sum(int(outcome.drafted.sum()) for outcome in plans.outcomes)
    accepted = sum(int(outcome.accepted.sum()) for outcome in plans.outcomes)
    assert 0.1 * drafted < accepted < 0.95 * drafted
    assert_blocks_sound(engine)
    assert engine.allocator.num_free == engine.allocator.num_blocks


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_preemption_recomputes(emit: str, llama: Pair, reference: Callable[[Path], Reference]) -> None:
    engine = Engine(llama.config(emit=emit, num_blocks=22, block_size=8, max_num_batched_tokens=16), RandomPlans(1))
    prompts = random_prompts(10, longest=60, seed=2)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=False))
    assert engine.scheduler.num_preemptions > 0
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert engine.allocator.num_free == engine.allocator.num_blocks


def test_queueing_time_is_that_of_a_request_that_was_never_admitted(llama: Pair) -> None:
    class Watching(RandomPlans):
        preempted = 0

        def plan(self, view: StepView) -> StepPlan:
            waiting = engine.scheduler.waiting
            self.preempted += any(request.emitted for request in waiting)
            assert (view.waiting_seconds > 0.0) == any(not request.emitted for request in waiting)
            return super().plan(view)

    plans = Watching(1)
    engine = Engine(llama.config(num_blocks=22, block_size=8, max_num_batched_tokens=16), plans)
    engine.generate(random_prompts(10, longest=60, seed=2), SamplingParams(max_tokens=MAX_TOKENS))
    assert plans.preempted > 0


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_a_part_of_each_draft_verified(emit: str, llama: Pair, reference: Callable[[Path], Reference]) -> None:
    controller, seen = load_controller("vllm-adaptive-verification"), Outcomes()
    controller.listeners.append(seen)
    engine = Engine(llama.config(emit=emit, max_num_batched_tokens=32), controller)
    prompts = random_prompts(14, longest=60, seed=5)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert controller.stats.guard_trips == 0
    drafting = [(plan, outcome) for plan, outcome in seen.steps if outcome.proposed.any()]
    assert any(0 < outcome.drafted.sum() < outcome.proposed.sum() for _, outcome in drafting)
    for plan, outcome in drafting:
        assert (outcome.drafted <= outcome.proposed).all()
        assert (outcome.proposed <= plan.draft_lengths).all()
    assert engine.allocator.num_free == engine.allocator.num_blocks


@pytest.mark.parametrize(("drafter", "asks"), [("model", True), ("ngram", False)])
def test_a_view_says_whether_the_drafter_asks_gates(drafter: str, asks: bool, llama: Pair) -> None:
    views: list[StepView] = []

    class Policy(RandomPlans):
        def plan(self, view: StepView) -> StepPlan:
            views.append(view)
            return super().plan(view)

    engine = Engine(llama.config() if drafter == "model" else llama.config(drafter=drafter), Policy())
    engine.generate(random_prompts(2, longest=20), SamplingParams(max_tokens=4))
    assert {view.calls_gate for view in views} == {asks}


def test_ngram_drafts(llama: Pair, reference: Callable[[Path], Reference]) -> None:
    plans = RandomPlans(3)
    engine = Engine(llama.config(drafter="ngram"), plans)
    prompts = [prompt * 3 for prompt in random_prompts(8, longest=20, seed=3)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert sum(int(outcome.drafted.sum()) for outcome in plans.outcomes) > 0


def test_text_is_the_tokenizers(llama: Pair) -> None:
    engine = Engine(llama.config(), RandomPlans(4))
    for output in engine.generate(["the cat sat", "the log"], SamplingParams(max_tokens=20)):
        assert output.text == engine.tokenizer.decode(output.token_ids, skip_special_tokens=True)
