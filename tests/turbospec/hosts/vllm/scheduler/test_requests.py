from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from turbospec.hosts.vllm.scheduler.requests import KnownRequests
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
    num_output_tokens: int = 0
    sampling_params: Any = field(init=False)

    def __post_init__(self) -> None:
        self.sampling_params = SimpleNamespace(extra_args=self.args)


def test_a_number_is_kept_for_a_life_and_never_used_again() -> None:
    known = KnownRequests()
    first = known.get(Request("a"))
    assert known.get(Request("a")) is first
    known.forget(["a", "never seen"])
    assert len(known) == 0
    assert known.get(Request("a")).number != first.number


def test_a_request_says_what_it_wants() -> None:
    known = KnownRequests()
    assert known.get(Request("a", {"turbospec_max_draft": 0})).max_draft == 0
    assert known.get(Request("b", {"turbospec_max_draft": "3"})).max_draft == 3
    assert known.get(Request("c", {"something": "else"})).max_draft is None
    chat, batch = (
        known.get(Request("d", {"turbospec_class": "chat"})),
        known.get(Request("e", {"turbospec_class": "b"})),
    )
    assert len({0, chat.class_id, batch.class_id}) == 3
    assert known.get(Request("f", {"turbospec_class": "chat"})).class_id == chat.class_id


@pytest.mark.parametrize("value", [-1, "many", 1.5, [2], math.inf, 10**400])
def test_a_wrong_length_is_one_warning_and_no_limit(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    known = KnownRequests()
    with caplog.at_level(logging.WARNING, "turbospec"):
        assert known.get(Request("a", {"turbospec_max_draft": value})).max_draft is None
        assert known.get(Request("b", {"turbospec_max_draft": value})).max_draft is None
    assert [record.getMessage().startswith("turbospec_max_draft") for record in caplog.records] == [True]


def test_more_classes_than_are_told_apart_share_the_unnamed_one(caplog: pytest.LogCaptureFixture) -> None:
    known = KnownRequests()
    with caplog.at_level(logging.WARNING, "turbospec"):
        ids = [known.get(Request(f"{i}", {"turbospec_class": f"c{i}"})).class_id for i in range(MAX_CLASSES + 1)]
    assert ids == [*range(1, MAX_CLASSES), 0, 0]
    assert len(caplog.records) == 1
