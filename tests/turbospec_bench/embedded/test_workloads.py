from __future__ import annotations

import json
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.embedded.workloads import RequestSource
from turbospec_bench.texts import ANSWERED_KINDS, ANSWERED_PROMPT_TOKENS, PROMPT_TOKENS, Shape

VOCABULARY = 64


class CharacterTokenizer:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) % VOCABULARY for character in text]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kind in ("code", "prose"):
        records = [{"id": str(number), "source": kind, "text": f"{kind} {number} " * 60} for number in range(5)]
        (tmp_path / f"{kind}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path


def source(folder: Path, seed: int = 0) -> RequestSource:
    return RequestSource(folder, CharacterTokenizer(), VOCABULARY, seed)


def test_a_round_is_the_same_for_everyone_and_different_from_the_next(folder: Path) -> None:
    configuration = Configuration("code", "good", 8)

    assert source(folder).draw(configuration, 0) == source(folder).draw(configuration, 0)
    assert source(folder).draw(configuration, 0) != source(folder).draw(configuration, 1)
    assert source(folder).draw(configuration, 0) != source(folder, seed=1).draw(configuration, 0)


def test_requests_fit_their_shape(folder: Path) -> None:
    configuration = Configuration("prose", "good", 32)
    load = source(folder).draw(configuration, 0)
    shape = Shape.of(configuration)

    assert len(load.requests) == shape.requests >= 32
    assert load.max_in_flight == 32
    assert all(PROMPT_TOKENS[0] <= len(request.prompt) <= PROMPT_TOKENS[1] for request in load.requests)
    assert all(request.params.ignore_eos for request in load.requests)
    assert len({request.params.seed for request in load.requests}) == len(load.requests)


def test_a_third_of_mixed_requests_is_restricted(folder: Path) -> None:
    load = source(folder).draw(Configuration("mixed", "good", 32), 0)
    restricted = [request for request in load.requests if request.params.allowed_token_ids is not None]

    assert len(restricted) / len(load.requests) == pytest.approx(1 / 3, abs=0.02)
    assert {request.params.service_class for request in load.requests} == {"default"}


def test_shift_goes_to_other_text_and_comes_back(folder: Path) -> None:
    load = source(folder).draw(Configuration("shift", "good", 8), 0)
    unpredictable = [request.params.temperature != load.requests[0].params.temperature for request in load.requests]
    third = len(load.requests) // 3

    assert unpredictable == [False] * third + [True] * third + [False] * third


@pytest.mark.parametrize("workload", ANSWERED_KINDS)
def test_requests_with_answers_are_forced_to_give_them(folder: Path, workload: str) -> None:
    text, answer = "0123456789" * 40, "abcdefghij" * 30
    (folder / f"{workload}.jsonl").write_text(json.dumps({"text": text, "answer": answer}))
    drawn = RequestSource(folder, CharacterTokenizer(), VOCABULARY, 0, [workload])
    load = drawn.draw(Configuration(workload, "good", 1), 0)

    encode = CharacterTokenizer().encode
    assert len({request.params.max_tokens for request in load.requests}) > 1
    for request in load.requests:
        assert list(request.prompt) == encode(text)[-ANSWERED_PROMPT_TOKENS:]
        assert request.params.greedy
        assert request.params.forced_token_ids == tuple(encode(answer)[: request.params.max_tokens])


@pytest.mark.parametrize("workload", ["code", "mixed", "shift", "edit"])
def test_no_prompt_comes_again_before_all_others_have_come(folder: Path, workload: str) -> None:
    for place, kind in enumerate(("code", "prose", "edit")):
        letters = [chr(20 * place + number + 1) for number in range(20)]
        records = [{"text": "x" + letter * 300, "answer": letter * 90} for letter in letters]
        (folder / f"{kind}.jsonl").write_text("\n".join(map(json.dumps, records)))
    drawn = RequestSource(folder, CharacterTokenizer(), VOCABULARY, 0, ["edit"])

    for number in range(3):
        load = drawn.draw(Configuration(workload, "good", 8), number)
        assert len({request.prompt[-1] for request in load.requests}) == len(load.requests)


def test_a_record_without_an_answer_is_named(folder: Path) -> None:
    (folder / "edit.jsonl").write_text('{"text": "a"}')
    with pytest.raises(UserError, match=r"edit\.jsonl:1: not a record \(it has no answer\); .* an `answer`"):
        RequestSource(folder, CharacterTokenizer(), VOCABULARY, 0, ["edit"])


def test_poisson_arrivals_rise_at_about_the_rate(folder: Path) -> None:
    load = source(folder).draw(Configuration("code", "good", request_rate=4.0), 0)

    assert load.max_in_flight is None
    assert load.arrivals is not None
    assert list(load.arrivals) == sorted(load.arrivals)
    assert len(load.arrivals) / load.arrivals[-1] == pytest.approx(4.0, rel=0.7)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no such workload file"), ("{}", "has no text"), ("", "no records")]
)
def test_a_bad_file_is_named(folder: Path, content: str | None, words: str) -> None:
    path = folder / "prose.jsonl"
    path.unlink()
    if content is not None:
        path.write_text(content)

    with pytest.raises(UserError, match=rf"prose\.jsonl.*: .*{words}"):
        source(folder)
