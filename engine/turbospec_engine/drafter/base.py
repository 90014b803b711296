"""What the engine asks of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turbospec import DraftGate
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.request import Request


class Drafter(Protocol):
    """Proposes tokens. It is called only in steps where some request drafts."""

    @property
    def parallel(self) -> bool:
        """True where all of a draft's positions come at the price of one pass."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """Longest context the drafter can read; None where nothing limits it."""
        ...

    def lag_tokens(self, request: Request) -> int:
        """Tokens that the drafter's cache lacks beyond those that any step feeds it."""
        ...

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        """Draft for the requests whose length is above 0.

        Args:
            requests: the n scheduled requests; their blocks hold room for the drafts.
            lengths: (n,) tokens to draft for each.
            draws: (n, longest) uniforms in [0, 1), one for each draft token that is sampled.
            gate: ends drafts early; rows are numbered as in `requests`.
        """
        ...
