"""Text leaves in whole characters and never shows part of a stop string."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from tests.turbospec_engine.harness import byte_level_tokenizer
from turbospec_engine.detokenizer import Detokenizer

TOKENIZER = byte_level_tokenizer()
BACKEND = TOKENIZER.backend_tokenizer


def test_bytes_that_turn_out_to_be_no_character_end_no_output() -> None:
    """A byte that follows a character of single bytes makes all of them invalid: the decoder cannot go on."""
    vocabulary = {"<unk>": 0, "a": 1, "<0xC3>": 2, "<0xA9>": 3, "▁b": 4}
    tokenizer = Tokenizer(BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)  # as Llama 2
    detokenizer, token_ids = Detokenizer(tokenizer), [1, 2, 3, 2, 4, 1]
    assert detokenizer.feed(token_ids) == (6, "aé\ufffd ba")
    assert detokenizer.flush(token_ids) == ""


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=30), chunk=st.integers(1, 5))
def test_pieces_add_up_and_are_whole(text: str, chunk: int) -> None:
    token_ids = BACKEND.encode(text).ids
    detokenizer = Detokenizer(BACKEND)
    pieces = [detokenizer.feed(token_ids[at : at + chunk])[1] for at in range(0, len(token_ids), chunk)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    pieces.append(detokenizer.flush(token_ids))
    assert "".join(pieces) == BACKEND.decode(token_ids) == detokenizer.text


@settings(max_examples=60, deadline=None)
@given(
    text=st.text("ab", min_size=1, max_size=20),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    chunk=st.integers(1, 4),
)
def test_stop_strings(text: str, stop: list[str], chunk: int) -> None:
    token_ids = BACKEND.encode(text).ids
    detokenizer = Detokenizer(BACKEND, stop)
    used, shown = 0, ""
    while used < len(token_ids) and not detokenizer.stopped:
        count, piece = detokenizer.feed(token_ids[used : used + chunk])
        used, shown = used + count, shown + piece
        assert not any(each in shown for each in stop)
    shown += detokenizer.flush(token_ids[:used])
    first = min((at for at in (text.find(each) for each in stop) if at >= 0), default=None)
    assert detokenizer.stopped == (first is not None)
    if first is None:
        assert shown == text
    else:
        # The string that is complete first ends the output, so nothing before the earliest one can be missing.
        assert text.startswith(shown)
        assert len(shown) >= first or any(text[: len(shown)] + each in text for each in stop)


def test_the_earliest_stop_string_ends_the_text() -> None:
    detokenizer = Detokenizer(BACKEND, ("c", "abx", "bc"))
    assert detokenizer.feed(BACKEND.encode("zab").ids)[1] == "z", "the longest text that may begin one is held back"
    assert detokenizer.feed(BACKEND.encode("c").ids)[1] == "a"
    assert detokenizer.stopped
