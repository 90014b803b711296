"""The interface of a look-up: all that an author of one must know.

A look-up drafts what followed a request's last tokens in earlier text. It runs no model and has no KV cache. Beside a
drafter it searches before each step is planned, so that the controller can choose between the two; as the only source
of drafts it is a drafter (`turbospec_engine.drafter.LookupDrafter`).

To add a look-up, write a class with the members of `Lookup` and pass an instance to `Engine(…, lookup=…)`. To select it
by name, return it from `build.build_lookup`. What it finds must be a function of tokens that are already emitted, and
of the draft that it continues: its tokens are then verified as point masses, and the output keeps the target's
distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec_engine.request import Request


class Lookup(Protocol):
    """Finds drafts in earlier text. It keeps what it knows of a request under `request.row_id`."""

    def find(self, request: Request, limit: int, draft: Sequence[int] = ()) -> tuple[Sequence[int], float]:
        """Look for a continuation of `request.tokens[:request.num_tokens]`, the prompt and the output, and a draft.

        The first call for a request is its beginning. Not all of its steps need a call, and a preempted request keeps
        its tokens. With a limit of 0 there is nothing to find, but there may be new tokens to take in.

        Args:
            request: past its prompt.
            limit: most tokens of interest.
            draft: what the drafter drafted after these tokens. It may be rejected, so it must not be kept.

        Returns:
            At most `limit` tokens, and the score of `LookupView.scores`; no tokens and 0 where nothing matches.
        """
        ...

    def finish(self, request: Request) -> None:
        """Forget a request that has ended or was aborted; it may be unknown."""
        ...


@dataclass(slots=True, frozen=True)
class Found:
    """What a look-up found for n requests, one row each."""

    tokens: IntArray
    """(n, longest) token ids; undefined past `lengths`."""
    lengths: IntArray
    """(n,) tokens found."""
    scores: FloatArray
    """(n,) how good each match is; 0 where nothing matches."""


def find_all(
    lookup: Lookup, requests: Sequence[Request], limits: IntArray, drafts: Sequence[Sequence[int]] | None = None
) -> Found:
    """Search for all requests of a step.

    Args:
        lookup: searches.
        requests: the n scheduled requests.
        limits: (n,) most tokens of interest; -1 for a request in prefill, for which there is no search.
        drafts: n drafts to continue; None: the requests' own tokens are continued.
    """
    found: list[Sequence[int]] = []
    scores = np.zeros(len(requests))
    for row, (request, limit) in enumerate(zip(requests, limits.tolist(), strict=True)):
        draft = () if drafts is None else drafts[row]
        tokens, scores[row] = lookup.find(request, limit, draft) if limit >= 0 else ((), 0.0)
        found.append(tokens[: max(0, limit)])
    lengths = np.array([len(tokens) for tokens in found], np.int64)
    table = np.zeros((len(requests), int(lengths.max(initial=0))), np.int64)
    for row in np.flatnonzero(lengths).tolist():
        table[row, : lengths[row]] = found[row]
    return Found(table, lengths, scores)
