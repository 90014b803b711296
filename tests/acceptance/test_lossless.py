"""The shipped pair on held-out prompts: random draft plans leave greedy output as transformers' `generate` has it.

`TURBOSPEC_LOSSLESS_PROMPTS` sets how many prompts are compared; 200 are the claim in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.turbospec_engine.harness import DEVICE, MixedPlans, RandomPlans, Reference
from turbospec.interface import Policy, Source, StepOutcome, StepPlan, StepView
from turbospec.policy import load_controller
from turbospec_engine import Engine, EngineConfig, SamplingParams

REPOSITORY = Path(__file__).parents[2]
PROMPTS = int(os.environ.get("TURBOSPEC_LOSSLESS_PROMPTS", "12"))
PROMPT_TOKENS, NEW_TOKENS = 96, 64


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(REPOSITORY / "models" / "target")
    texts = [
        json.loads(line)["text"]
        for kind in ("code", "prose")
        for line in (REPOSITORY / "workloads" / f"{kind}.jsonl").read_text().splitlines()[: -(-PROMPTS // 2)]
    ]
    return [ids[:PROMPT_TOKENS] for ids in tokenizer(texts)["input_ids"]][:PROMPTS]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(REPOSITORY / "models" / "target")


def outputs_of(
    drafter: str, controller: Policy, prompts: list[list[int]], lookup: str | None = None
) -> list[tuple[int, ...]]:
    config = EngineConfig(
        REPOSITORY / "models" / "target",
        drafter="ngram" if drafter == "ngram" else REPOSITORY / "models" / drafter,
        lookup=lookup,
        device=DEVICE,
        max_num_seqs=8,
        max_model_len=PROMPT_TOKENS + NEW_TOKENS,
        max_draft=15,
    )
    outputs = Engine(config, controller).generate(prompts, SamplingParams(max_tokens=NEW_TOKENS))
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize(
    ("drafter", "lookup"),
    [
        ("drafter", None),
        ("eagle3", None),
        ("peagle", None),
        ("dflash", None),
        ("ngram", None),
        ("drafter", "ngram"),
        ("eagle3", "ngram"),
        ("peagle", "ngram"),
        ("dflash", "ngram"),
    ],
)
def test_random_plans(drafter: str, lookup: str | None, prompts: list[list[int]], reference: Reference) -> None:
    plans = MixedPlans(longest=15) if lookup else RandomPlans(longest=15)
    outputs = outputs_of(drafter, plans, prompts, lookup)
    if lookup:
        assert isinstance(plans, MixedPlans)
        assert plans.counts(Source.LOOKUP)[1] > len(prompts)
        assert plans.counts(Source.DRAFTER)[1] > len(prompts)
    assert sum(int(outcome.accepted.sum()) for outcome in plans.outcomes) > len(prompts)
    compared = reference.compare(prompts, outputs, NEW_TOKENS)
    print(f"\n{drafter}, {lookup}: {compared.equal} of {len(prompts)} equal, {compared.near_ties} differ at a near tie")
    assert not compared.different
    assert compared.equal >= 0.98 * len(prompts) - 1


class Drafts:
    """Counts, as a listener, what was drafted."""

    def __init__(self) -> None:
        self.drafted = 0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.drafted += int(outcome.drafted.sum())


def test_adaptive(prompts: list[list[int]], reference: Reference) -> None:
    controller, drafts = load_controller("adaptive"), Drafts()
    controller.listeners.append(drafts)
    compared = reference.compare(prompts, outputs_of("drafter", controller, prompts), NEW_TOKENS)
    assert not compared.different
    assert drafts.drafted > len(prompts)
