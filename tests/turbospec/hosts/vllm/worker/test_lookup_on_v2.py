"""Drafts of a look-up on a stand-in for model runner V2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.lookup_drafts import LOOKUP_DRAFTS_ATTRIBUTE, LookupDraft  # noqa: E402
from turbospec.hosts.vllm.worker.lookup_on_v2 import install  # noqa: E402


def a_runner(draft_logits: Any = None) -> Any:
    """vLLM's, with two requests whose drafter made two of at most three draft tokens."""
    return SimpleNamespace(
        execute_model=lambda output, more="": (output, more),
        speculator=SimpleNamespace(draft_logits=draft_logits),
        req_states=SimpleNamespace(
            req_id_to_index={"a": 3, "b": 0},
            total_len=SimpleNamespace(gpu=torch.tensor([22, 0, 0, 20], dtype=torch.int32)),
            draft_tokens=torch.tensor([[1, 2, -1], [0, 0, 0], [0, 0, 0], [3, 4, -1]]),
        ),
    )


def step(**drafts: LookupDraft) -> SimpleNamespace:
    return SimpleNamespace(**({LOOKUP_DRAFTS_ATTRIBUTE: drafts} if drafts else {}))


def test_they_replace_those_of_the_drafter() -> None:
    """Two tokens of `b` were emitted since it was looked up."""
    runner = a_runner()
    install(runner)
    output = step(b=LookupDraft(20, [5, 6, 7, 8, 9]))
    assert runner.execute_model(output, more="more") == (output, "more")
    assert runner.req_states.draft_tokens.tolist() == [[7, 8, 9], [0] * 3, [0] * 3, [3, 4, -1]]


def test_where_drafts_are_sampled_they_are_point_masses() -> None:
    logits = torch.rand(4, 3, 10)
    before = logits.clone()
    runner = a_runner(logits)
    install(runner)
    runner.execute_model(step(a=LookupDraft(20, [5, 6])))
    masses = logits[3].softmax(dim=-1)
    assert masses[:2].argmax(dim=-1).tolist() == [5, 6]
    assert masses[:2].max(dim=-1).values.tolist() == [1.0, 1.0]
    assert torch.equal(logits[:3], before[:3])
    assert torch.equal(logits[3, 2], before[3, 2]), "no draft is that long"


def test_a_drafter_that_writes_its_candidates_alone_clears_the_look_ups_token_before() -> None:
    runner = a_runner(torch.full((4, 3, 10), float("-inf")))
    candidates = torch.ones(4, 3, 2, dtype=torch.int64)
    runner.speculator.candidate_sampler = SimpleNamespace(cached_candidate_ids=candidates)
    install(runner)
    runner.execute_model(step(a=LookupDraft(20, [5, 6])))
    assert candidates[3].tolist() == [[5, 5], [6, 6], [1, 1]]
    assert (candidates[:3] == 1).all()


def test_other_steps_are_vllms_own() -> None:
    runner = a_runner()
    install(runner)
    runner.execute_model(step())
    assert runner.req_states.draft_tokens[3].tolist() == [3, 4, -1]
