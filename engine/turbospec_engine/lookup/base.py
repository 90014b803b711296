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

    def find(
        self, requests: Sequence[Request], limits: IntArray, drafts: Sequence[Sequence[int]] | None = None
    ) -> Found:
        """Look for what follows each request's `request.tokens[:request.num_tokens]`, its prompt and its output.

        The first search for a request is its beginning. Not all of its steps search for it, and a preempted request
        keeps its tokens.

        Args:
            requests: n of a step.
            limits: (n,) most tokens of interest; 0 for a request that is not searched for, as in prefill.
            drafts: what the drafter drafted after the tokens of each. It may be rejected, so it must not be kept. None:
                nothing was drafted.
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
    """(n,) how good each match is, as in `LookupView.scores`; 0 where nothing matches."""

    @classmethod
    def of(cls, drafts: Sequence[Sequence[int]], scores: Sequence[float]) -> Found:
        """From the tokens found for each of n requests, and the (n,) scores."""
        lengths = np.array([len(draft) for draft in drafts], np.int64)
        tokens = np.zeros((len(drafts), int(lengths.max(initial=0))), np.int64)
        for row, draft in enumerate(drafts):
            tokens[row, : len(draft)] = draft
        return cls(tokens, lengths, np.array(scores, np.float64))
