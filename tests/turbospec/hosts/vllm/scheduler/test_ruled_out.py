from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from turbospec.hosts.vllm.scheduler.ruled_out import cut_before, cut_within, drafts_under_grammar


def a_step(drafts: dict[str, int], *, first: int = 1, invalid: dict[str, int] | None = None) -> Any:
    """A step that verifies drafts of these lengths, after `first` other tokens of each request."""
    return SimpleNamespace(
        num_scheduled_tokens={name: first + length for name, length in drafts.items()},
        scheduled_spec_decode_tokens={name: [7] * length for name, length in drafts.items() if length},
        num_invalid_spec_tokens=invalid,
    )


def test_only_drafts_under_a_grammar_may_be_cut() -> None:
    requests: Any = {
        "a": SimpleNamespace(use_structured_output=True),
        "b": SimpleNamespace(use_structured_output=False),
    }
    requests["d"] = requests["a"]
    drafts: Any = SimpleNamespace(req_ids=["a", "b", "c", "d"], draft_token_ids=[[1, 2], [1], [1], [3, -1, -1]])
    assert drafts_under_grammar(requests, drafts) == {"a": 2, "d": 1}


def test_under_async_scheduling_a_draft_is_cut_where_vllm_counts_fewer_tokens_than_were_made() -> None:
    step = a_step({"a": 3, "b": 3, "c": 3, "d": 2}, invalid={"a": 1, "b": 3, "c": 1})
    assert cut_within(step, {"a": 3, "b": 3, "c": 2, "d": 3, "x": 2}) == {"a", "b"}


def test_a_draft_that_was_cut_before_is_verified_as_it_is_or_says_nothing() -> None:
    step = a_step({"a": 2, "b": 0, "c": 1})
    assert cut_before(step, {"a": 2, "b": 0, "c": 2, "x": 0}) == {"a", "b"}
    assert cut_before(a_step({"a": 0}, first=5), {"a": 0}) == set(), "a session's next input"
