"""Hugging Face `generate` with the repository's models: whatever a policy plans, the output stays the target's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turbospec.controller import Controller, GuardConfig
from turbospec.errors import UserError
from turbospec.hosts.transformers import attach, detach
from turbospec.interface import Phase, StepOutcome, StepPlan, StepView
from turbospec.policy import load_controller

MODELS = Path(__file__).parents[3] / "models"
NEW_TOKENS = 48
PROMPTS = ["def fibonacci(n):\n", "for i in range(10):\n    print(i)\nfor i in range(10):\n", "The sea was calm and"]


class Recorded:
    """Plans the lengths of a list, over and over, and keeps what it sees."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.views: list[StepView] = []
        self.outcomes: list[StepOutcome] = []

    def plan(self, view: StepView) -> StepPlan:
        self.views.append(view)
        return StepPlan(np.minimum(self.lengths[(len(self.views) - 1) % len(self.lengths)], view.draft_limits))

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture(scope="module")
def target() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODELS / "target")


@pytest.fixture
def drafter() -> Any:
    return load_drafter("drafter")


def load_drafter(name: str, most: int = 8) -> Any:
    drafter = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
    drafter.generation_config.num_assistant_tokens = most
    drafter.generation_config.assistant_confidence_threshold = 0.0
    return drafter


@pytest.fixture
def generate(target: Any, tokenizer: Any) -> Any:
    """Generates greedily with the target, from a text or token ids, and gives back the new tokens."""

    def run(prompt: Any, **settings: Any) -> list[int]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids if isinstance(prompt, str) else prompt
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False} | settings
        return target.generate(input_ids=ids, **settings)[0, ids.shape[1] :].tolist()

    yield run
    detach(target)


def guarded(policy: Any) -> Controller:
    return Controller(policy, guard=GuardConfig(max_decision_seconds=60.0))


@pytest.mark.parametrize("lengths", [(0,), (8,), (0, 3, 0, 0, 8, 1)])
@pytest.mark.parametrize("lookup", [False, True])
def test_the_output_does_not_depend_on_the_lengths(generate, target, drafter, lengths, lookup):
    drafting = {"prompt_lookup_num_tokens": 8} if lookup else {"assistant_model": drafter}
    policy = Recorded(*lengths)
    for prompt in PROMPTS:
        detach(target)
        expected = generate(prompt)
        attach(target, controller := guarded(policy))
        assert generate(prompt, **drafting) == expected
        assert controller.stats.host_faults == 0, controller.stats.last_fault
    assert sum(int(outcome.drafted[0]) for outcome in policy.outcomes) > 0 or lengths == (0,)


def test_views_and_outcomes_keep_the_contract(generate, target, tokenizer, drafter):
    policy = Recorded(0, 0, 0, 4, 2, 0)
    attach(target, controller := guarded(policy))
    emitted = [len(generate(prompt, assistant_model=drafter)) for prompt in PROMPTS]
    assert controller.stats.host_faults == controller.stats.guard_trips == 0
    assert [view.step for view in policy.views] == list(range(len(policy.views)))
    requests = [int(view.request_ids[0]) for view in policy.views]
    assert requests == sorted(requests)
    for request, (prompt, tokens) in enumerate(zip(PROMPTS, emitted, strict=True)):
        steps = [step for step in range(len(requests)) if requests[step] == request]
        views, outcomes = [policy.views[step] for step in steps], [policy.outcomes[step] for step in steps]
        prompt_tokens = len(tokenizer(prompt).input_ids)
        assert [int(view.phase[0]) for view in views[:2]] == [Phase.PREFILL, Phase.FIRST_DECODE]
        assert {int(view.phase[0]) for view in views[2:]} == {Phase.DECODE}
        assert views[0].prefill_tokens == outcomes[0].tokens_batched == prompt_tokens
        assert sum(int(outcome.emitted[0]) for outcome in outcomes) == tokens
        drafter_tokens, text = 0, prompt_tokens
        for view, outcome in zip(views, outcomes, strict=True):
            drafted = int(outcome.drafted[0])
            if view.phase[0] != Phase.PREFILL:
                assert view.context_tokens[0] == text - 1
                assert outcome.tokens_batched == 1 + drafted
            assert view.drafter_lag_tokens[0] == text - 2 - drafter_tokens
            assert view.tokens_left[0] == prompt_tokens + NEW_TOKENS - text
            assert outcome.catch_up_tokens == (view.drafter_lag_tokens[0] if drafted else 0)
            assert outcome.draft_rows.tolist() == [1] * drafted
            assert outcome.step_seconds > 0.0
            assert outcome.draft_seconds + outcome.verify_seconds == pytest.approx(outcome.step_seconds)
            text += int(outcome.emitted[0])
            if drafted:
                drafter_tokens = text - 2


def test_a_drafter_that_was_left_out_drafts_as_if_it_had_not_been(generate, target, tokenizer, drafter):
    prompt = tokenizer(PROMPTS[0], return_tensors="pt").input_ids
    policy = Recorded(0, 3, 0, 0, 0, 5, 0, 2)
    attach(target, guarded(policy))
    drafts: list[tuple[list[int], list[int]]] = []
    draft = drafter.generate

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        result = draft(*arguments, **keywords)
        ids = keywords["input_ids"]
        drafts.append((ids[0].tolist(), result.sequences[0, ids.shape[1] :].tolist()))
        return result

    drafter.generate = recorded
    generate(prompt, assistant_model=drafter)
    assert len(drafts) > 3
    for text, tokens in drafts:
        fresh = draft(input_ids=torch.tensor([text]), max_new_tokens=len(tokens), do_sample=False)
        assert tokens == fresh[0, len(text) :].tolist()


def test_the_mask_of_a_prompt_counts_when_the_drafter_starts_later(generate, target, tokenizer, drafter):
    ids = tokenizer(PROMPTS[0], return_tensors="pt").input_ids
    padded = torch.cat([torch.full((1, 3), tokenizer.pad_token_id), ids], dim=1)
    mask = torch.ones_like(padded)
    mask[:, :3] = 0
    expected = generate(padded, attention_mask=mask)
    policy = Recorded(0, 0, 4, 4)
    attach(target, guarded(policy))
    assert generate(padded, attention_mask=mask, assistant_model=drafter) == expected
    assert sum(int(outcome.accepted[0]) for outcome in policy.outcomes) > NEW_TOKENS // 5


@pytest.mark.parametrize("position", range(3))
def test_an_answer_that_ends_within_a_draft(generate, target, position):
    # The drafter is the target: all its tokens are accepted, also the one that ends the answer.
    twin, expected = load_drafter("target"), generate(PROMPTS[2])
    ends = [token for at, token in enumerate(expected) if at >= 2 and token not in expected[:at]]
    end = ends[position]
    policy = Recorded(8)
    attach(target, guarded(policy))
    tokens = generate(PROMPTS[2], assistant_model=twin, eos_token_id=end)
    assert tokens == expected[: expected.index(end) + 1]
    last = policy.outcomes[-1]
    ends_in_draft = len(tokens) - sum(int(each.emitted[0]) for each in policy.outcomes[:-1]) <= int(last.drafted[0])
    assert bool(last.truncated[0]) == ends_in_draft
    assert int(last.accepted[0]) == int(last.emitted[0]) - (0 if ends_in_draft else 1)


def test_sampling_stays_within_the_contract(generate, target, drafter):
    attach(target, controller := guarded(policy := Recorded(0, 4, 2)))
    torch.manual_seed(0)
    tokens = generate(PROMPTS[0], do_sample=True, temperature=0.8, assistant_model=drafter)
    assert len(tokens) <= NEW_TOKENS
    assert sum(int(outcome.emitted[0]) for outcome in policy.outcomes) == len(tokens)
    assert controller.stats.host_faults == 0


def test_adaptive_turns_off_a_drafter_that_is_never_right(generate, target):
    attach(target, controller := load_controller("adaptive"))
    controller.guard = GuardConfig(max_decision_seconds=60.0)
    lengths: list[int] = []
    controller.listeners.append(
        SimpleNamespace(on_step=lambda view, plan, outcome, seconds: lengths.append(int(plan.draft_lengths[0])))
    )
    for prompt in PROMPTS:
        generate(prompt, assistant_model=load_drafter("drafter-mismatched"))
    assert sum(lengths) > 0
    assert np.mean(lengths[len(lengths) // 2 :]) < 0.3
    assert controller.stats.host_faults == controller.stats.guard_trips == 0


def test_detached_and_replaced(generate, target, drafter):
    first, second = Recorded(2), Recorded(2)
    attach(target, guarded(first))
    generate(PROMPTS[0], assistant_model=drafter)
    steps = len(first.views)
    attach(target, guarded(second))
    generate(PROMPTS[0], assistant_model=drafter)
    assert steps == len(first.views) == len(second.views)
    detach(target)
    generate(PROMPTS[0], assistant_model=drafter)
    detach(target)
    assert len(second.views) == steps


def test_generation_without_a_drafter_is_left_alone(generate, target):
    attach(target, controller := guarded(Recorded(4)))
    assert len(generate(PROMPTS[0])) == NEW_TOKENS
    assert controller.stats.steps == 0


def test_a_model_that_does_not_generate_is_refused():
    with pytest.raises(UserError, match="Linear has no `_get_candidate_generator`; use a generative model"):
        attach(torch.nn.Linear(1, 1), guarded(Recorded(1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [0, 129])
def test_a_longest_draft_out_of_range_is_refused(generate, target, most):
    attach(target, guarded(Recorded(1)))
    with pytest.raises(UserError, match=f"num_assistant_tokens is {most}; use 1 to 128"):
        generate(PROMPTS[0], assistant_model=load_drafter("drafter", most))


def test_a_drafter_without_a_draft_length_is_refused(generate, target):
    attach(target, guarded(Recorded(1)))
    with pytest.raises(UserError, match="EarlyExitCandidateGenerator has no draft length to set; use an assistant"):
        generate(PROMPTS[0], assistant_early_exit=1)
