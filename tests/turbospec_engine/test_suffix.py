"""Suffix decoding. What the trees find is tested where `arctic-inference` is installed, their use everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.turbospec_engine.harness import MixedPlans, Pair, RandomPlans, Reference, look_up, random_prompts
from turbospec import UserError
from turbospec_engine import Engine, SamplingParams
from turbospec_engine.lookup import SuffixLookup

MAX_TOKENS = 24
PACKAGE = "arctic_inference.suffix_decoding"
REAL = pytest.param("real", marks=pytest.mark.skipif(find_spec("arctic_inference") is None, reason="not installed"))


class StandIn:
    """`SuffixDecodingCache` with its rules on calls and eviction; it searches the request, without trees."""

    def __init__(self, max_tree_depth: int, max_cached_requests: int) -> None:
        self.depth, self.max_cached_requests = max_tree_depth, max_cached_requests
        self.texts: dict[Hashable, list[int]] = {}
        self.cached_requests: dict[Hashable, list[int]] = {}

    @property
    def active_requests(self) -> Any:
        return self.texts.keys()

    def start_request(self, req_id: Hashable, prompt: np.ndarray) -> None:
        assert prompt.dtype == np.int32
        if req_id in self.texts:
            raise ValueError(f"Request '{req_id}' is already active")
        self.texts[req_id] = prompt.tolist()
        self.cached_requests[req_id] = []
        while len(self.cached_requests) > self.max_cached_requests:
            del self.cached_requests[next(iter(self.cached_requests))]

    def stop_request(self, req_id: Hashable) -> None:
        if req_id not in self.texts:
            raise ValueError(f"Request '{req_id}' is not active")
        del self.texts[req_id]

    def add_active_response(self, req_id: Hashable, tokens: np.ndarray) -> None:
        assert tokens.dtype == np.int32
        if req_id not in self.texts:
            raise ValueError(f"Request '{req_id}' is not active")
        self.texts[req_id] += tokens.tolist()
        if req_id in self.cached_requests:
            self.cached_requests[req_id] += tokens.tolist()

    def speculate(
        self,
        req_id: Hashable,
        context: np.ndarray,
        max_spec_tokens: int,
        max_spec_factor: float,
        min_token_prob: float,
    ) -> Any:
        assert context.dtype == np.int32
        assert len(context) <= self.depth
        text, given = self.texts[req_id], context.tolist()
        # The text's last tokens, and a draft of the drafter that may follow them.
        assert any(given[:cut] == text[-cut:] for cut in range(1, len(given) + 1))
        for end in range(len(text) - 1, 0, -1):
            if text[end - 1] == given[-1]:
                found = text[end : end + max_spec_tokens]
                return SimpleNamespace(token_ids=found, score=0.5 * len(found))
        return SimpleNamespace(token_ids=[], score=0.0)


@pytest.fixture(params=["stand-in", REAL], autouse=True)
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "stand-in":
        module = ModuleType(PACKAGE)
        module.SuffixDecodingCache = StandIn  # pyright: ignore
        monkeypatch.setitem(sys.modules, "arctic_inference", ModuleType("arctic_inference"))
        monkeypatch.setitem(sys.modules, PACKAGE, module)
    return request.param


def request_of(prompt: list[int], output: list[int], row_id: int = 0) -> Any:
    tokens = np.array([*prompt, *output], np.int64)
    return SimpleNamespace(row_id=row_id, tokens=tokens, num_prompt_tokens=len(prompt), num_tokens=len(tokens))


def test_what_the_request_repeats_is_found() -> None:
    lookup = SuffixLookup()
    found, score = look_up(lookup, request_of([1, 2, 3, 4, 5, 6], [9, 1, 2, 3]), 2)
    assert list(found) in ([4], [4, 5])
    assert 0 < score <= len(found)
    assert list(look_up(lookup, request_of([1, 2, 3, 4, 5, 6], [9, 1, 2, 3]), 0)[0]) == []


def test_a_draft_is_continued_and_not_kept() -> None:
    lookup, request = SuffixLookup(), request_of([1, 2, 3, 4, 5, 6], [9, 1, 2])
    found, _ = look_up(lookup, request, 2, [3, 4])
    assert list(found) == [5, 6]
    assert list(look_up(lookup, request, 1)[0]) == [3]


def test_text_that_was_never_seen_is_not_continued() -> None:
    assert look_up(SuffixLookup(), request_of([1, 2, 3], [4]), 5) == ([], 0.0)


def test_tokens_emitted_between_two_searches_are_taken_in_once() -> None:
    lookup = SuffixLookup()
    for output in ([7], [7, 8, 9], [7, 8, 9], [7, 8, 9, 5, 7, 8]):
        found, _ = look_up(lookup, request_of([1, 2, 3], output), 1)
    assert list(found) == [9]


def test_an_answer_is_found_by_the_requests_after_it(package: str) -> None:
    if package == "stand-in":
        pytest.skip("the stand-in searches one request")
    lookup = SuffixLookup()
    look_up(lookup, request_of([1, 2], [10, 11], 0), 1)
    lookup.finish(request_of([1, 2], [10, 11, 12, 13, 14, 15], 0))
    found, score = look_up(lookup, request_of([5, 6], [10, 11, 12], 1), 15)
    assert list(found) == [13, 14, 15]
    # The tree counts the request's own text too, which ends where the answer goes on.
    assert score == 1.5


def test_answers_are_bounded_and_finished_requests_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbospec_engine.lookup.suffix.MAX_ANSWERS", 3)
    lookup = SuffixLookup()
    for row_id in range(10):
        request = request_of([1, 2], [3, 4], row_id)
        look_up(lookup, request, 4)
        if row_id % 2:
            lookup.finish(request)
    lookup.finish(request_of([1], [2], 99))
    assert set(lookup._trees.active_requests) == {0, 2, 4, 6, 8}
    assert set(lookup._trees.cached_requests) == {7, 8, 9}
    assert lookup._known.keys() == {0, 2, 4, 6, 8}


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
@pytest.mark.parametrize("beside", [True, False])
def test_outputs_are_the_targets(beside: bool, emit: str, llama: Pair, reference: Callable[[Path], Reference]) -> None:
    plans = MixedPlans(1) if beside else RandomPlans(1)
    config = {"lookup": "suffix"} if beside else {"drafter": "suffix"}
    engine = Engine(llama.config(emit=emit, num_blocks=40, block_size=8, **config), plans)
    prompts = [prompt * 2 for prompt in random_prompts(16, longest=20, seed=3)] * 2
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert sum(int(outcome.drafted.sum()) for outcome in plans.outcomes) > 50
    lookup: Any = engine.lookup or engine.drafter.lookup  # pyright: ignore
    assert not lookup._known


def test_a_missing_package_is_the_users_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(UserError, match=r"pip install '\.\[suffix\]'") as error:
        SuffixLookup()
    assert "\n" not in str(error.value)
