from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from turbospec.hosts.vllm.scheduler.requests import UNLIMITED, KnownRequests
from turbospec.models.logistic import MAX_CLASSES


@dataclass
class Request:
    request_id: str
    args: dict[str, Any] | None = None
    num_prompt_tokens: int = 4
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    max_tokens: int = 16
    num_tokens: int = 4
    sampling_params: Any = field(init=False)
    use_structured_output: bool = False

    @property
    def all_token_ids(self) -> list[int]:
        return [0] * self.num_tokens

    def __post_init__(self) -> None:
        self.sampling_params = SimpleNamespace(extra_args=self.args)


def test_a_number_is_kept_for_a_life_and_never_used_again() -> None:
    known = KnownRequests()
    first = known.rows([Request("a")])
    assert known.rows([Request("b"), Request("a")])[1] == first
    number = known.numbers[first]
    known.forget(["a", "never seen"])
    assert len(known) == 1
    assert known.numbers[known.rows([Request("a")])] != number


def test_a_row_that_is_used_again_starts_anew() -> None:
    known = KnownRequests()
    row = known.rows([Request("a", {"turbospec_max_draft": 2})])
    known.lag_tokens[row], known.lacks_prompt[row] = 7, True
    known.forget(["a"])
    assert known.rows([Request("b")]) == row
    assert known.lag_tokens[row] == 0
    assert not known.lacks_prompt[row]
    assert known.max_draft[row] == UNLIMITED


def test_there_are_rows_for_any_number_of_requests() -> None:
    known = KnownRequests()
    requests = [Request(str(number), {"turbospec_max_draft": number}) for number in range(3 * KnownRequests.CAPACITY)]
    rows = known.rows(requests)
    assert len(set(rows.tolist())) == len(requests)
    assert known.max_draft[rows].tolist() == [*range(len(requests))]


def test_names_that_are_not_known_have_no_rows() -> None:
    known = KnownRequests()
    rows = known.rows([Request("a"), Request("b")])
    named = known.rows_named(["b", "a"])
    assert named is not None
    assert named.tolist() == rows[::-1].tolist()
    assert known.rows_named(["b", "c"]) is None


def test_a_request_says_what_it_wants() -> None:
    known = KnownRequests()
    chosen = known.rows(
        [
            Request("a", {"turbospec_max_draft": 0}),
            Request("b", {"turbospec_max_draft": "3"}),
            Request("c", {"something": "else"}),
        ]
    )
    assert known.max_draft[chosen].tolist() == [0, 3, UNLIMITED]
    assert not known.class_ids[chosen].any()
    classes = known.rows(
        [Request(name, {"turbospec_class": each}) for name, each in zip("def", ("chat", "b", "chat"), strict=True)]
    )
    chat, batch, again = known.class_ids[classes].tolist()
    assert len({0, chat, batch}) == 3
    assert again == chat


class Unspeakable:
    """Of no use, and without a text."""

    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __int__ = __repr__


LONG = pytest.param(10**5000, id="more digits than Python prints")


@pytest.mark.parametrize(
    "value",
    [-1, "many", 1.5, [2], math.inf, 10**400, LONG, Unspeakable(), pytest.param("x" * 10**6, id="a long text"), {}],
)
def test_a_wrong_length_is_one_warning_and_no_limit(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    known = KnownRequests()
    with caplog.at_level(logging.WARNING, "turbospec"):
        rows = known.rows([Request(name, {"turbospec_max_draft": value}) for name in "ab"])
    assert known.max_draft[rows].tolist() == [UNLIMITED, UNLIMITED]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("turbospec_max_draft")
    assert len(message) < 200


@pytest.mark.parametrize("value", [LONG, Unspeakable()])
def test_a_class_without_a_name_is_the_unnamed_one(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    known = KnownRequests()
    with caplog.at_level(logging.WARNING, "turbospec"):
        rows = known.rows([Request(name, {"turbospec_class": value}) for name in "ab"])
    assert known.class_ids[rows].tolist() == [0, 0]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("args", [None, {}, [], "turbospec_max_draft", 7])
def test_arguments_of_any_type_are_taken(args: Any) -> None:
    known = KnownRequests()
    assert known.max_draft[known.rows([Request("a", args)])] == UNLIMITED


def test_who_starts_anew_keeps_its_number_and_says_again_what_it_wants() -> None:
    known = KnownRequests()
    row = known.rows([Request("a", {"turbospec_max_draft": 2})])
    known.lag_tokens[row], known.lacks_prompt[row] = 7, True
    number = known.numbers[row]
    known.restart(Request("a", {"turbospec_max_draft": 3}))
    known.restart(Request("never seen"))
    assert known.rows([Request("a")]) == row
    assert (known.numbers[row], known.max_draft[row], known.lag_tokens[row]) == (number, 3, 0)
    assert not known.lacks_prompt[row]
    assert len(known) == 1


def test_more_classes_than_are_told_apart_share_the_unnamed_one(caplog: pytest.LogCaptureFixture) -> None:
    known = KnownRequests()
    with caplog.at_level(logging.WARNING, "turbospec"):
        rows = known.rows([Request(f"{i}", {"turbospec_class": f"c{i}"}) for i in range(MAX_CLASSES + 1)])
    assert known.class_ids[rows].tolist() == [*range(1, MAX_CLASSES), 0, 0]
    assert len(caplog.records) == 1
