from __future__ import annotations

from types import SimpleNamespace

from turbospec.hosts.vllm.loop import Verified
from turbospec.hosts.vllm.outputs import Judged, judged, verified


def a_step(drafts: dict[str, list[int]], sampled: dict[str, list[int]], invalid: dict[str, int] | None = None):
    scheduled = SimpleNamespace(
        num_scheduled_tokens={name: 1 + len(drafts.get(name, ())) for name in sampled},
        scheduled_spec_decode_tokens=drafts,
        num_invalid_spec_tokens=invalid,
    )
    rows = {name: row for row, name in enumerate(sampled)}
    return scheduled, SimpleNamespace(req_id_to_index=rows, sampled_token_ids=list(sampled.values()))


def served(*names: str, finished: tuple[str, ...] = ()) -> dict[str, SimpleNamespace]:
    return {name: SimpleNamespace(is_finished=lambda name=name: name in finished) for name in names}


def sent(**tokens: list[int]) -> dict[int, SimpleNamespace]:
    """As two clients get it."""
    outputs = [SimpleNamespace(request_id=name, new_token_ids=each) for name, each in tokens.items()]
    return {0: SimpleNamespace(outputs=outputs[::2]), 1: SimpleNamespace(outputs=outputs[1::2])}


def test_drafts_are_counted_by_what_the_target_sampled() -> None:
    step = a_step({"a": [7, 8, 9], "b": [7, -1]}, {"a": [7, 8, 1], "b": [2], "c": [3], "d": []}, {"b": 1})
    found = judged(*step, served("a", "b", "c", "d"))
    assert found == {"a": Judged(3, 2, 3), "b": Judged(1, 0, 1), "c": Judged(0, 0, 1), "d": Judged(0, 0, 0)}
    assert verified(found, sent(a=[7, 8, 1], b=[2], c=[3])) == {
        "a": Verified(3, 2, 3), "b": Verified(1, 0, 1), "c": Verified(0, 0, 1), "d": Verified(0, 0, 0),
    }  # fmt: skip


def test_requests_that_are_gone_are_left_out() -> None:
    step = a_step({"a": [7], "b": [7]}, {"a": [7, 1], "b": [7, 1], "c": [1]})
    assert judged(*step, served("a", "b", finished=("b",))) == {"a": Judged(1, 1, 2)}


def test_a_request_that_ended_sent_less_than_was_sampled() -> None:
    assert verified({"a": Judged(4, 3, 4)}, sent(a=[7, 8])) == {"a": Verified(4, 3, 2)}


def test_what_vllm_drops_of_a_preempted_request_says_nothing() -> None:
    """As after its prefix cache was reset: the request computes these tokens again."""
    assert verified({"a": Judged(2, 1, 2), "b": Judged(2, 0, 1)}, sent(b=[3])) == {"b": Verified(2, 0, 1)}
