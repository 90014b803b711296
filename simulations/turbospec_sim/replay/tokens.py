"""What a trace shows of the drafter's guesses, token by token.

Each output token of a request is emitted once. If it was drafted and all drafts before it were accepted, the trace
shows whether it was guessed, and at which place of a draft. Nobody knows what would have come of a token that was not
drafted, or that stood behind the first rejection.

A drafter that starts from the target's last token knows more than one that builds on its own guesses. What is shown at
one place is therefore taken to hold on one side of it only: a token that was guessed deep in a draft is guessed nearer
to its beginning too, one that was missed is missed further down, and the rest is unknown. (Some drafters see the tokens
alone, and guess the same at any place: prompt look-up always, a draft model where decoding is greedy.)

So there are three kinds of places in a draft for each token: in the first `certain` it is guessed, from `possible` on
it is missed, and between them the trace cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turbospec.interface import IntArray
from turbospec.runtime.kernels import compiled

ANYWHERE = 1 << 30
"""More places than a draft has."""


class Draft(NamedTuple):
    """A draft of a request that was verified."""

    position: int
    """Of the request's output token that it begins with."""
    drafted: int
    accepted: int
    failed: bool
    """Whether the token after the accepted ones is known to be rejected."""


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """The output tokens of n requests, end to end; after each request's come as many more as a draft can be long."""

    lines: IntArray
    """(n, 2) first token and number of tokens of each request, those beyond its end included."""
    outputs: IntArray
    """(n,) tokens of each request's output."""
    certain: IntArray
    """(tokens,) number of a draft's first places at which the token is known to be guessed."""
    possible: IntArray
    """(tokens,) number of places at which it may be guessed, for all that is known."""
    drafted: IntArray
    """(tokens,) length of the recorded draft that begins with the token."""

    @classmethod
    def of(cls, outputs: IntArray, drafts: Sequence[Sequence[Draft]], max_draft: int) -> KnownTokens:
        """Gather the drafts of n requests with outputs of the (n,) lengths given."""
        sizes = outputs + max_draft
        begins = np.cumsum(sizes) - sizes
        certain, drafted = np.zeros((2, int(sizes.sum())), np.int64)
        possible = np.full(len(certain), ANYWHERE)
        for begin, output, own in zip(begins.tolist(), outputs.tolist(), drafts, strict=True):
            # What lies beyond the end is judged by nobody and must not look like a rejection.
            certain[begin + output : begin + output + max_draft] = ANYWHERE
            for draft in own:
                if draft.position >= output:
                    continue
                at = begin + draft.position
                drafted[at] = draft.drafted
                accepted = min(draft.accepted, output - draft.position)
                certain[at : at + accepted] = np.arange(1, accepted + 1)
                if draft.failed and draft.position + accepted < output:
                    possible[at + accepted] = accepted
        return cls(np.stack([begins, sizes], axis=1), outputs, certain, possible, drafted)

    def same_at_any_place(self) -> KnownTokens:
        """The same for a drafter that guesses a token wherever it stands in a draft, or nowhere."""
        certain = np.where(self.certain > 0, ANYWHERE, 0)
        possible = np.where(self.possible < ANYWHERE, 0, ANYWHERE)
        return KnownTokens(self.lines, self.outputs, certain, possible, self.drafted)


@compiled
def count_judged(
    lines: IntArray,
    outputs: IntArray,
    certain: IntArray,
    possible: IntArray,
    requests: IntArray,
    positions: IntArray,
    lengths: IntArray,
) -> tuple[int, int]:
    """How many tokens of some drafts the trace can judge, of how many.

    It judges a draft up to the first token that it does not know at its place; behind a known rejection nothing is left
    to know. Tokens beyond an output's end do not count.
    """
    judged, drafted = 0, 0
    for i in range(len(requests)):
        request, position = requests[i], positions[i]
        length = max(min(lengths[i], outputs[request] - position), 0)
        begin = lines[request, 0] + position
        drafted += length
        for j in range(length):
            if j < certain[begin + j]:
                judged += 1
            elif j >= possible[begin + j]:
                judged += length - j
                break
            else:
                break
    return judged, drafted
