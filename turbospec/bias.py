"""What plans promised against what came of them: integral action on the models' standing errors.

A planner chooses what looks best, and best looks what the models err in favour of: a step that drafts takes a little
longer, and a little less is accepted, than was expected when it was chosen. Where drafting hardly pays, an error of a
few percent decides. It is therefore measured, for each load and for steps with and without drafts apart, and a plan
must pay with it taken off. An error that both kinds of step share, as of a machine that slows down, takes nothing off.
"""

from __future__ import annotations

from turbospec.price import BUCKETS, load_bucket

MAX_RATIO = 2.0
"""Times what was promised that a step is believed to have taken: a stall says nothing of the next step."""


class _Account:
    """Promised and real amounts, discounted."""

    def __init__(self) -> None:
        self._promised = 0.0
        self._real = 0.0

    def add(self, promised: float, real: float, keep: float) -> None:
        self._promised = self._promised * keep + promised
        self._real = self._real * keep + min(real, MAX_RATIO * promised)

    def corrected(self, promised: float, doubt: float) -> float:
        """What to expect of a promise; what was seen counts for as much as the promise once it amounts to `doubt`."""
        return promised * (self._real + doubt) / (self._promised + doubt)


class PlanBias:
    """Corrects what a plan is worth by how plans have turned out.

    Args:
        memory: steps that are remembered.
        doubt_steps: steps after which their durations weigh as much as the latency model.
        doubt_tokens: the same for accepted tokens, of which few are a matter of chance.
    """

    def __init__(self, memory: float = 300.0, doubt_steps: float = 6.0, doubt_tokens: float = 150.0) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._doubt_steps = doubt_steps
        self._doubt_tokens = doubt_tokens
        # One for each load, without and with prefill in the step.
        self._tokens = [_Account() for _ in range(2 * BUCKETS)]
        self._drafting = [_Account() for _ in range(2 * BUCKETS)]
        self._plain = [_Account() for _ in range(2 * BUCKETS)]

    def learn(
        self,
        requests: int,
        prefilling: bool,
        promised_tokens: float,
        tokens: int,
        promised_seconds: float,
        seconds: float,
    ) -> None:
        """Take in a step.

        Args:
            requests: decoding requests.
            prefilling: whether prompts were in the step.
            promised_tokens: accepted draft tokens that were expected; 0 for a step without drafts.
            tokens: accepted draft tokens.
            promised_seconds: duration that was expected.
            seconds: duration.
        """
        load = _load(requests, prefilling)
        if promised_tokens > 0.0:
            self._tokens[load].add(promised_tokens, tokens, self._keep)
            self._drafting[load].add(promised_seconds, seconds, self._keep)
            self._plain[load].add(0.0, 0.0, self._keep)
        else:
            self._plain[load].add(promised_seconds, seconds, self._keep)
            self._tokens[load].add(0.0, 0.0, self._keep)
            self._drafting[load].add(0.0, 0.0, self._keep)

    def surplus(
        self,
        requests: int,
        prefilling: bool,
        *,
        tokens: float,
        seconds: float,
        invested_seconds: float,
        plain_seconds: float,
        price: float,
    ) -> float:
        """Tokens that a plan really brings beyond what its time is worth.

        Args:
            tokens: accepted draft tokens that the plan promises.
            seconds: duration that it promises.
            invested_seconds: of these, what later steps have to earn.
            plain_seconds: duration promised of the step without drafts.
            price: tokens that a second is worth.
        """
        load, steps = _load(requests, prefilling), self._doubt_steps
        drafting = self._drafting[load].corrected(seconds, steps * seconds)
        plain = self._plain[load].corrected(plain_seconds, steps * plain_seconds)
        return self._tokens[load].corrected(tokens, self._doubt_tokens) - price * (drafting - invested_seconds - plain)


def _load(requests: int, prefilling: bool) -> int:
    return load_bucket(requests) + BUCKETS * prefilling
