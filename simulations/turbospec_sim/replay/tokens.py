"""What a trace shows about the acceptance of each output token.

Each output token of a request is emitted once. Where it was drafted and all drafts before it were accepted, the trace
shows whether it was accepted, and at which draft position. It shows nothing about tokens that were not drafted, nor
about those after the first rejection.

A drafter that starts from the target's last token knows more than one that conditions on its own draft tokens.
Therefore what is observed at one draft position is extended in one direction only: a token accepted at a position is
taken to be accepted at all smaller ones, and a token rejected at a position to be rejected at all larger ones. The rest
is unknown. (For some drafters acceptance does not depend on the draft position: always for prompt look-up, and for a
draft model under greedy decoding.)

Each token's draft positions thus fall into three ranges: below `certain` it is accepted, from `possible` on it is
rejected, and between them the trace cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turbospec.interface import IntArray
from turbospec.runtime.kernels import compiled

ANYWHERE = 1 << 30
"""More positions than any draft has."""


class Draft(NamedTuple):
    """A draft of a request that was verified."""

    position: int
    """Position of its first token in the request's output."""
    drafted: int
    accepted: int
    failed: bool
    """Whether the token after the accepted ones is known to be rejected."""


class KnownTokens(NamedTuple):
    """The output tokens of n requests, end to end; `max_draft` more tokens follow each request's own."""

    lines: IntArray
    """(n, 2) index of each request's first token, and its number of tokens, the additional ones included."""
    outputs: IntArray
    """(n,) output tokens of each request."""
    certain: IntArray
    """(tokens,) draft positions, from the first on, at which the token is known to be accepted."""
    possible: IntArray
    """(tokens,) draft positions, from the first on, at which the token may be accepted."""
    drafted: IntArray
    """(tokens,) length of the recorded draft that begins with the token."""

    @classmethod
    def of(cls, outputs: IntArray, drafts: Sequence[Sequence[Draft]], max_draft: int) -> KnownTokens:
        """From the drafts of n requests, whose outputs have the (n,) lengths `outputs`."""
        sizes = outputs + max_draft
        begins = np.cumsum(sizes) - sizes
        certain, drafted = np.zeros((2, int(sizes.sum())), np.int64)
        possible = np.full(len(certain), ANYWHERE)
        for begin, output, own in zip(begins.tolist(), outputs.tolist(), drafts, strict=True):
            # Tokens beyond the end are never judged and must not count as rejected.
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

    def same_at_any_position(self) -> KnownTokens:
        """The same for a drafter whose acceptance of a token does not depend on the draft position."""
        certain = np.where(self.certain > 0, ANYWHERE, 0)
        possible = np.where(self.possible < ANYWHERE, 0, ANYWHERE)
        return KnownTokens(self.lines, self.outputs, certain, possible, self.drafted)


@compiled
def count_judged(requests: IntArray, positions: IntArray, lengths: IntArray, *known: IntArray) -> tuple[int, int]:
    """How many tokens of some drafts the trace can judge, and how many tokens the drafts have.

    A draft is judged up to the first token whose acceptance is unknown at its position; a draft with a known rejection
    is judged whole. Tokens beyond an output's end do not count.

    Args:
        requests: (n,) the request of each draft.
        positions: (n,) output position of each draft's first token.
        lengths: (n,) tokens of each draft.
        known: the arrays of `KnownTokens`, loose (see `arrays.EngineArrays`).
    """
    tokens = KnownTokens(*known)
    judged, drafted = 0, 0
    for i in range(len(requests)):
        request, position = requests[i], positions[i]
        length = max(min(lengths[i], tokens.outputs[request] - position), 0)
        begin = tokens.lines[request, 0] + position
        drafted += length
        for j in range(length):
            if j < tokens.certain[begin + j]:
                judged += 1
            elif j >= tokens.possible[begin + j]:
                judged += length - j
                break
            else:
                break
    return judged, drafted
