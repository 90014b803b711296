"""What a request emits of its accepted tokens: EOS, stop strings and length limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from turbospec_engine.request import FinishReason, Request, RequestOutput


@dataclass(slots=True, frozen=True)
class Emission:
    """What a step emits for one request."""

    request: Request
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None

    def as_output(self, emitted_at: float) -> RequestOutput:
        """The user's output, with the time of its emission on the clock of `time.perf_counter()`."""
        finished = self.finish_reason is not None
        return RequestOutput(
            self.request.request_id, self.token_ids, self.text, finished, self.finish_reason, emitted_at
        )


def emit(request: Request, candidates: list[int], eos_token_ids: Collection[int]) -> Emission:
    """Append as many of a request's new tokens as EOS, stop strings and the length limit allow.

    Args:
        candidates: the accepted draft tokens and the target's own token after them (the bonus token, where all drafts
            were accepted).
    """
    reason: FinishReason | None = None
    if not request.params.ignore_eos:
        for position, token_id in enumerate(candidates):
            if token_id in eos_token_ids:
                candidates, reason = candidates[: position + 1], "stop"
                break
    used, text = request.detokenizer.feed(candidates)
    candidates = candidates[:used]
    if reason is None and request.tokens_left == len(candidates):
        reason = "length"
    if reason is not None:
        text += request.detokenizer.flush([*request.output_tokens.tolist(), *candidates])
    if request.detokenizer.stopped:
        reason = "stop"
    # Last, so that the request is as before where decoding fails.
    request.decode_steps += int(request.emitted > 0)
    request.append(candidates)
    # The pass has computed the accepted drafts; the last candidate is not in the KV cache yet.
    request.computed = request.num_tokens - 1
    request.draft_computed = min(request.draft_computed, request.computed)
    return Emission(request, tuple(candidates), text, reason)
