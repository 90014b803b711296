"""CONTRIBUTING's recipe for a drafter: the example runs in the engine and leaves its outputs unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.examples.drafter import LastOccurrence
from tests.turbospec_engine.harness import FixedPlans, Pair, Reference, random_prompts
from turbospec_engine import Engine, SamplingParams

MAX_TOKENS = 24


def test_outputs_are_the_targets(llama: Pair, reference: Callable[[Path], Reference]) -> None:
    plans = FixedPlans(longest=4)
    engine = Engine(llama.config(drafter=None), plans, drafter=LastOccurrence())
    prompts = [prompt * 3 for prompt in random_prompts(8, longest=20, seed=3)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert sum(int(outcome.accepted.sum()) for outcome in plans.outcomes) > 0


def test_a_drafter_that_is_given_replaces_the_configured_one(llama: Pair) -> None:
    own = LastOccurrence()
    assert Engine(llama.config(drafter="ngram"), FixedPlans(), drafter=own).drafter is own
