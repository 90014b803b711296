from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.drafter_orders import DRAFTS_ATTRIBUTE, DRAFTS_EXPECTED_ATTRIBUTE  # noqa: E402
from turbospec.hosts.vllm.worker.drafts_in_output import install  # noqa: E402


def a_state(*, due: bool = True) -> SimpleNamespace:
    """What a runner holds between executing a step and sampling."""
    return SimpleNamespace(scheduler_output=SimpleNamespace(**({DRAFTS_EXPECTED_ATTRIBUTE: True} if due else {})))


def sampled(drafts: Any, requests: list[str], *, due: bool = True) -> SimpleNamespace:
    """What a runner's step gives that made these drafts."""
    runner = SimpleNamespace(
        sample_tokens=lambda grammar: SimpleNamespace(req_ids=requests, grammar=grammar),
        take_draft_token_ids=lambda: "taken",
        _draft_token_ids=drafts,
        execute_model_state=a_state(due=due),
    )
    install(runner)
    output = runner.sample_tokens("grammar")
    assert output.grammar == "grammar"
    return output


@pytest.mark.parametrize("drafts", [torch.zeros(1, 2), [[1, 2]], [[]]])
def test_drafts_that_are_there_go_with_the_tokens(drafts: Any) -> None:
    assert getattr(sampled(drafts, ["a"]), DRAFTS_ATTRIBUTE) == "taken"


@pytest.mark.parametrize(
    ("drafts", "requests"),
    [
        (torch.zeros(1, 2, device="meta"), ["a"]),  # still being made on a device
        (torch.zeros(1, 0), ["a"]),
        (None, ["a"]),
        ([], ["a"]),
        (torch.zeros(1, 2), []),  # of an earlier step
    ],
)
def test_other_drafts_are_left_to_be_asked_for(drafts: Any, requests: list[str]) -> None:
    assert not hasattr(sampled(drafts, requests), DRAFTS_ATTRIBUTE)


def test_drafts_that_nobody_asked_for_stay_where_they_are() -> None:
    """vLLM makes up zeros where a request is too long for the drafter."""
    assert not hasattr(sampled(torch.zeros(1, 2), ["a"], due=False), DRAFTS_ATTRIBUTE)


@pytest.mark.parametrize("state", [None, a_state()])
def test_a_step_without_output_stays_one(state: SimpleNamespace | None) -> None:
    runner = SimpleNamespace(sample_tokens=lambda _: None, _draft_token_ids=[[1]], execute_model_state=state)
    install(runner)
    assert runner.sample_tokens(None) is None
