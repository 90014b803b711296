"""Incremental detokenization with stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

INVALID_PREFIX = "Invalid prefix encountered"
"""In the message of a `DecodeStream` whose state is broken; its exception has no class of its own."""


class Detokenizer:
    """Decodes one request's output and looks for its stop strings.

    Text is released only when it consists of whole characters and cannot be the beginning of a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(stop)
        self._newest = 0
        """The last token that was decoded."""
        self._held = ""
        self._emitted: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        """All text released so far."""
        return "".join(self._emitted)

    def feed(self, token_ids: Sequence[int]) -> tuple[int, str]:
        """Decode tokens up to the first stop string.

        Returns:
            How many of the tokens belong to the output, and the text released. When a stop string ends the output,
            `stopped` is set, the token that completes the stop string is the last one counted, and the text is cut
            before the stop string.
        """
        used = 0
        for token_id in token_ids:
            used += 1
            self._held += self._decoded(int(token_id))
            self._newest = int(token_id)
            if self._stop and self._cut_at_stop():
                self.stopped = True
                break
        return used, self._release(self._releasable())

    def _decoded(self, token_id: int) -> str:
        """The text that one more token completes."""
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception as error:
            # Where earlier bytes turn out to be no character, the decoder's text shrinks, and it gives up
            # (https://github.com/vllm-project/vllm/issues/17448). It starts anew with the token before, because some
            # decoders strip the first token's space.
            if INVALID_PREFIX not in str(error):
                raise
            self._stream = DecodeStream(skip_special_tokens=True)
            self._stream.step(self._tokenizer, self._newest)
            return self._stream.step(self._tokenizer, token_id) or ""

    def flush(self, token_ids: Sequence[int]) -> str:
        """Release the text held back, once no token will follow; `token_ids` is the whole output.

        The last token may end in the first bytes of a character. `feed` has then not seen what is before them, which
        may hold a stop string: it sets `stopped` and cuts the text, as `feed` does.
        """
        if not self.stopped:
            whole = self._tokenizer.decode([int(token_id) for token_id in token_ids], skip_special_tokens=True)
            if whole.startswith(released := self.text):  # not where the decoder had to start anew
                self._held = whole[len(released) :]
            self.stopped = self._cut_at_stop()
        return self._release(len(self._held))

    def _cut_at_stop(self) -> bool:
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._held = self._held[: min(found)]
        return bool(found)

    def _releasable(self) -> int:
        if self.stopped:
            return len(self._held)
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return len(self._held) - longest

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            self._emitted.append(text)
        return text
