"""What a step's tokens make of a request."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from turbospec_engine import SamplingParams
from turbospec_engine.detokenizer import Detokenizer
from turbospec_engine.emission import emit
from turbospec_engine.request import Request

LETTER, LINE_END = 0, 1
"""A letter, and the end of a line with the first byte of a character."""


def request_of(stop: tuple[str, ...], max_tokens: int) -> Request:
    tokenizer = Tokenizer(BPE({"a": LETTER, "Ċâ": LINE_END}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return Request(
        "a",
        0,
        [LETTER],
        SamplingParams(max_tokens=max_tokens, stop=stop),
        arrival=0.0,
        max_total_tokens=1 + max_tokens,
        class_id=0,
        seed=(0,),
        allowed=None,
        detokenizer=Detokenizer(tokenizer, stop),
    )


def test_a_stop_string_is_found_in_text_that_waits_for_the_rest_of_a_character() -> None:
    emission = emit(request_of(("\n",), max_tokens=2), [LETTER, LINE_END], ())
    assert (emission.token_ids, emission.text, emission.finish_reason) == ((LETTER, LINE_END), "a", "stop")


def test_without_a_stop_string_that_text_is_shown() -> None:
    emission = emit(request_of(("b",), max_tokens=2), [LETTER, LINE_END], ())
    assert (emission.text, emission.finish_reason) == ("a\n\ufffd", "length")


@pytest.mark.parametrize("failing", ["feed", "flush"])
def test_a_request_is_as_before_where_decoding_fails(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of((), max_tokens=3)
    emit(request, [LETTER], ())
    request.draft_computed = 3  # with the drafts of the step

    def fail(token_ids: list[int]) -> None:
        raise RuntimeError

    def state() -> tuple[int, ...]:
        return request.num_tokens, request.computed, request.draft_computed, request.decode_steps

    before = state()
    monkeypatch.setattr(request.detokenizer, failing, fail)
    with pytest.raises(RuntimeError):
        emit(request, [LETTER, LETTER], ())
    assert state() == before
    monkeypatch.undo()
    emit(request, [LETTER, LETTER], ())
    assert state() == (4, 3, 3, 1)
