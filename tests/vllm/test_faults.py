"""What goes wrong or ends early in a real vLLM that drafts at random (`traffic.py`), sync and async."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.vllm.script import run_script
from tests.vllm.traffic import MAX_DRAFT


@dataclass(slots=True, frozen=True)
class Served:
    batches: dict[str, Any]
    """By kind: answers and vLLM's counters."""
    known: list[int]
    """Requests that the loop knew after each batch."""
    log: str

    def answers(self, kind: str) -> list[Any]:
        return self.batches[kind]["answers"]


def run(mode: str) -> Served:
    result, log = run_script("traffic", mode)
    return Served(result["served"], result["known"], log)


@pytest.fixture(scope="module")
def alone() -> Served:
    return run("alone")


@pytest.fixture(scope="module", params=["sync", "async"])
def drafting(request: pytest.FixtureRequest) -> Served:
    return run(request.param)


def test_output_is_the_same_as_without_speculation(alone: Served, drafting: Served) -> None:
    """Grammars, cached prefixes, prompts in chunks, and ends in the midst of a draft."""
    for kind, batch in alone.batches.items():
        if kind != "seeded":
            assert drafting.answers(kind) == batch["answers"], kind
            assert drafting.batches[kind]["accepted_tokens"] > 0, kind


def test_the_traffic_is_what_it_says(drafting: Served) -> None:
    texts = [text for text, _, _ in drafting.answers("grammar")]
    assert re.fullmatch("[a-f]{3,20}-[0-9]{2}", texts[1])
    assert texts[2] == texts[6] == "positive"
    assert json.loads(texts[4])["n"] == 0
    assert drafting.batches["shared prefix again"]["cached"] >= 8 * 64
    assert [reason for _, reason, _ in drafting.answers("length")] == ["length"] * 8
    for kind in ("stop token", "stop string"):
        assert sum(reason == "stop" for _, reason, _ in drafting.answers(kind)) > 4


def test_a_seed_holds_where_a_request_refuses_drafts(alone: Served, drafting: Served) -> None:
    """All that vLLM promises of a seed under speculation: how many tokens are drafted changes what it draws, but it
    draws nothing more for a request without drafts, whatever the others of its batch do."""
    assert drafting.answers("seeded")[1::2] == alone.answers("seeded")[1::2]
    assert [reason for _, reason, _ in drafting.answers("seeded")] == ["length"] * 4


def test_aborts_leave_the_others_alone_and_nothing_behind(alone: Served, drafting: Served) -> None:
    plain = alone.answers("plain")
    assert drafting.answers("aborted") == [None if i % 2 else plain[i] for i in range(8)]
    assert drafting.answers("after aborts") == plain
    # A request is forgotten in the step after its last: no more than a batch is ever known.
    assert max(drafting.known) <= 8


def test_tokens_that_are_dropped_and_computed_again(alone: Served, drafting: Served) -> None:
    """All requests are preempted with steps under way, of which vLLM sends nothing on."""
    assert drafting.answers("preempted") == alone.answers("plain")
    assert drafting.batches["preempted"]["preemptions"] == 8
    assert drafting.answers("after the preemption") == alone.answers("plain")


def test_a_step_that_fails_costs_its_lengths_and_no_more(alone: Served, drafting: Served) -> None:
    """A burst of errors is logged once, the requests go on, and TurboSpec does when the errors end."""
    assert drafting.log.count("TurboSpec failed in a step") == 1
    assert drafting.log.count("RuntimeError: fails on purpose") == 1
    for kind in ("failing", "healed"):
        assert drafting.answers(kind) == alone.answers("plain")
    healed = drafting.batches["healed"]
    assert 0 < healed["draft_tokens"] < 0.8 * MAX_DRAFT * healed["drafts"]


def test_errors_that_do_not_end_turn_turbospec_off(alone: Served, drafting: Served) -> None:
    """vLLM then drafts its full length."""
    assert drafting.log.count("TurboSpec failed and is off") == 1
    for kind in ("failing for good", "off"):
        assert drafting.answers(kind) == alone.answers("plain")
    off = drafting.batches["off"]
    assert off["draft_tokens"] == MAX_DRAFT * off["drafts"] > 0
