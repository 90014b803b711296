"""Output text in which accepted draft tokens have the colour of their source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from turbospec.interface import Source

NAMES = {Source.DRAFTER: "drafter", Source.LOOKUP: "look-up"}
COLOURS = {Source.DRAFTER: "green", Source.LOOKUP: "cyan"}


class DraftedText:
    """Where in an output the tokens of each source are.

    Args:
        decode: the text that further tokens of the output release.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._length = 0
        self._ends: list[tuple[int, str]] = []
        """Where each piece of text ends, in characters, and its style."""

    def add(self, token_ids: Sequence[int], *accepted: tuple[int, Source]) -> None:
        """Take in a step's tokens: first those that were drafted, by number and source, then the target's own."""
        begin = 0
        for number, style in (*((number, COLOURS[source]) for number, source in accepted), (len(token_ids), "")):
            tokens = token_ids[begin : begin + number]
            begin += number
            if tokens:
                self._length += len(self._decode(tokens))
                self._ends.append((self._length, style))

    def styled(self, text: str) -> Text:
        """The output's text in colours."""
        styled, begin = Text(), 0
        for end, style in self._ends:
            styled.append(text[begin:end], style)
            begin = end
        styled.append(text[begin:])
        return styled


def legend(sources: Sequence[Source]) -> Text:
    """The colour of each source."""
    return Text("accepted drafts of the ") + Text(", ").join(Text(NAMES[source], COLOURS[source]) for source in sources)
