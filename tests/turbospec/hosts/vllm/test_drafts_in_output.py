from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from turbospec.hosts.vllm.drafter_orders import DRAFTS_ATTRIBUTE  # noqa: E402
from turbospec.hosts.vllm.drafts_in_output import install  # noqa: E402


def sampled(drafts: Any, requests: list[str]) -> SimpleNamespace:
    """What a runner's step gives that made these drafts."""
    runner = SimpleNamespace(
        sample_tokens=lambda grammar: SimpleNamespace(req_ids=requests, grammar=grammar),
        take_draft_token_ids=lambda: "taken",
        _draft_token_ids=drafts,
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


def test_a_step_without_output_stays_one() -> None:
    runner = SimpleNamespace(sample_tokens=lambda _: None, _draft_token_ids=[[1]])
    install(runner)
    assert runner.sample_tokens(None) is None
