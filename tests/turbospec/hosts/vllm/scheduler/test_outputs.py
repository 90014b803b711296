from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from turbospec.hosts.vllm.scheduler.outputs import Outputs, accepted, verified
from turbospec.hosts.vllm.scheduler.ruled_out import RULED_OUT_ATTRIBUTE, Scheduled


def a_step(
    drafts: dict[str, list[int]], sampled: dict[str, int], invalid: dict[str, int] | None = None
) -> tuple[Scheduled, dict[str, int], list[int]]:
    scheduled: Any = SimpleNamespace(
        num_scheduled_tokens={name: 1 + len(drafts.get(name, ())) for name in sampled},
        scheduled_spec_decode_tokens=drafts,
        num_invalid_spec_tokens=invalid,
    )
    return scheduled, {name: row for row, name in enumerate(sampled)}, list(sampled.values())


def of(
    names: str, step: tuple[Scheduled, dict[str, int], list[int]], outputs: dict[int, Outputs]
) -> dict[str, tuple[int, int, int]]:
    """Drafted, accepted and emitted tokens of those of the named requests that the step sampled for."""
    found = verified(*step, outputs, names)
    rows = zip(names, found.valid, found.drafted, found.accepted, found.emitted, strict=True)
    assert not (found.drafted | found.accepted | found.emitted)[~found.valid].any()
    return {name: (int(drafted), int(accepted), int(sent)) for name, seen, drafted, accepted, sent in rows if seen}


def sent(**tokens: list[int]) -> dict[int, Outputs]:
    """As two clients get it."""
    outputs = [SimpleNamespace(request_id=name, new_token_ids=each) for name, each in tokens.items()]
    return {0: SimpleNamespace(outputs=outputs[::2]), 1: SimpleNamespace(outputs=outputs[1::2])}


def test_drafts_are_counted_by_what_the_target_sampled() -> None:
    step = a_step({"a": [7, 8, 9], "b": [7, -1]}, {"a": 3, "b": 1, "c": 1, "d": 0}, {"b": 1})
    outputs = sent(a=[7, 8, 1], b=[2], c=[3])
    expected = {"a": (3, 2, 3), "b": (1, 0, 1), "c": (0, 0, 1), "d": (0, 0, 0)}
    assert of("abcd", step, outputs) == expected
    assert of("xdb", step, outputs) == {name: expected[name] for name in "db"}, "in the order of the plan's requests"


def test_the_first_token_that_a_grammar_ruled_out_counts_as_verified() -> None:
    step = a_step({"a": [7, 8, -1], "b": [7, 8]}, {"a": 3, "b": 1, "c": 1}, {"a": 1})
    setattr(step[0], RULED_OUT_ATTRIBUTE, frozenset({"a", "c"}))
    assert of("abc", step, sent(a=[7, 8, 1], b=[2], c=[3])) == {"a": (3, 2, 3), "b": (2, 0, 1), "c": (1, 0, 1)}


def test_requests_that_were_aborted_are_left_out() -> None:
    assert of("ab", a_step({"a": [7], "b": [7]}, {"a": 2, "b": 2}), sent(a=[7, 1])) == {"a": (1, 1, 2)}


def test_a_request_that_ended_sent_less_than_was_sampled() -> None:
    assert of("a", a_step({"a": [7, 8, 9, 9]}, {"a": 4}), sent(a=[7, 8])) == {"a": (4, 3, 2)}


def test_what_vllm_drops_of_a_preempted_request_says_nothing() -> None:
    """As after its prefix cache was reset: the request computes these tokens again."""
    step = a_step({"a": [7, 8], "b": [7, 8]}, {"a": 2, "b": 1})
    assert of("ab", step, sent(b=[3])) == {"b": (2, 0, 1)}


def test_a_step_that_gave_nothing_says_nothing() -> None:
    scheduled, _, _ = a_step({"a": [7]}, {"a": 2})
    assert of("a", (scheduled, {}, []), sent()) == {}


def test_a_request_that_the_step_did_not_schedule_says_nothing() -> None:
    step = a_step({}, {"d": 0, "a": 2})
    assert of("xa", step, sent(a=[1, 2])) == {"a": (0, 0, 2)}


def test_the_drafts_that_were_accepted_are_those_before_the_last_sampled_token() -> None:
    assert accepted({"a": 0, "b": 1, "c": 2}, [4, 1, 0], ["c", "b", "a", "x"]) == {"b": 0, "a": 3}
    assert accepted({"a": 0}, [], ["a"]) == {}
