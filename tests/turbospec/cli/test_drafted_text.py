"""The colours of `turbospec generate`."""

from __future__ import annotations

from turbospec.cli.drafted_text import COLOURS, DraftedText, legend
from turbospec.interface import Source

WORDS = {1: "the ", 2: "cat ", 3: "sat", 4: "", 5: "é"}
DRAFTER, LOOKUP = COLOURS[Source.DRAFTER], COLOURS[Source.LOOKUP]


def drafted(*steps: tuple[list[int], int, Source]) -> DraftedText:
    text = DraftedText(lambda token_ids: "".join(WORDS[token] for token in token_ids))
    for tokens, accepted, source in steps:
        text.add(tokens, (accepted, source))
    return text


def pieces(text: DraftedText, whole: str) -> list[tuple[str, str]]:
    styled = text.styled(whole)
    assert styled.plain == whole
    return [(styled.plain[span.start : span.end], str(span.style)) for span in styled.spans]


def test_accepted_tokens_have_the_colour_of_their_source() -> None:
    text = drafted(([1], 0, Source.DRAFTER), ([2, 1, 3], 2, Source.DRAFTER), ([1, 2], 2, Source.LOOKUP))
    assert pieces(text, "the cat the satthe cat ") == [("cat the ", DRAFTER), ("the cat ", LOOKUP)]
    assert DRAFTER != LOOKUP


def test_appended_tokens_have_the_colour_of_the_look_up() -> None:
    text = drafted()
    text.add([1, 2, 3, 1], (1, Source.DRAFTER), (2, Source.LOOKUP))
    assert pieces(text, "the cat satthe ") == [("the ", DRAFTER), ("cat sat", LOOKUP)]


def test_half_a_character_is_shown_with_the_token_that_completes_it() -> None:
    text = drafted(([4, 5], 1, Source.LOOKUP), ([4, 5], 2, Source.LOOKUP))
    assert pieces(text, "éé") == [("é", LOOKUP)]


def test_the_text_is_shown_whole_and_alone_where_a_stop_string_cuts_it_or_its_end_was_held_back() -> None:
    text = drafted(([1, 2], 2, Source.DRAFTER))
    assert pieces(text, "the c") == [("the c", DRAFTER)]
    assert pieces(text, "the cat sat") == [("the cat ", DRAFTER)]
    assert pieces(text, "") == []


def test_the_legend_names_the_sources_in_their_colours() -> None:
    one, two = legend([Source.DRAFTER]), legend(list(Source))
    assert one.plain == "accepted drafts of the drafter"
    assert two.plain == "accepted drafts of the drafter, look-up"
    assert [str(span.style) for span in two.spans] == [DRAFTER, LOOKUP]
