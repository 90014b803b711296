"""The interface of a drafter: all that an author of one must know.

To add a drafter, write a class with the members of `Drafter` and pass an instance to `Engine(…, drafter=…)`. To select
it by name, return it from `build.build_drafter`. The shortest example is tests/examples/drafter.py, in this package
`lookup.LookupDrafter`. CONTRIBUTING.md has the recipe.

Correctness rests on three rules; tests/turbospec_engine/test_sampling.py shows how to test them.

1. The distribution that is returned is the one that was drawn from. A drafted token x is accepted with probability
   min(1, p(x)/q(x)). Where tokens are drawn, return q for each in `Draft.distributions`; where they follow
   deterministically from the request's tokens, return None, which means q(x) = 1.
2. No other randomness than `draws`: `draws[i, j]` decides on draft token j of request i, and nothing else.
3. Non-anticipation: whether draft token j is proposed or verified may depend on earlier tokens and on distributions,
   token j's own included, but never on the value of a drawn token j, on its probability, or on later tokens. Otherwise
   the output no longer has the target's distribution. `Draft.confidence` and a gate's input are therefore the largest
   probability of the distribution, not the probability of the drawn token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turbospec import DraftGate
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.hidden_states import HiddenStates
from turbospec_engine.request import Request


class Drafter(Protocol):
    """Proposes draft tokens. The engine calls `propose` only in steps where some request drafts."""

    @property
    def parallel(self) -> bool:
        """True where one pass makes all tokens of a draft, so that its cost hardly depends on the draft length."""
        ...

    @property
    def calls_gate(self) -> bool:
        """True where `propose` asks a gate after each pass, and reports `Draft.confidence`."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """Longest context in tokens, drafts included, that the drafter can process; None: no limit."""
        ...

    @property
    def hidden_states(self) -> HiddenStates | None:
        """Where the target's passes store the hidden states that the drafter reads, of layers that it chooses.

        None, and nothing is stored, where it reads tokens only. While a request drafts, they are stored for all of its
        tokens but the newest, which the target has not computed.
        """
        ...

    def lag_tokens(self, request: Request) -> int:
        """Drafter KV lag in tokens: those that the drafter's KV cache lacks beyond the ones that every draft computes.

        0 without a KV cache. The controller charges drafting for catching up on it.
        """
        ...

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        """Draft for the requests whose length is above 0.

        A drafter with a KV cache stores it under the KV blocks `request.block_ids`, which hold `request.num_tokens` +
        `lengths[i]` tokens; the drafters that the engine builds use `request.draft_block_ids`. It sets
        `request.draft_computed` to the number of tokens that its cache then holds. The engine takes rejected tokens
        off, and sets it to 0 when the request is preempted or its drafter KV blocks are given back. Nothing else of a
        request may be changed.

        Args:
            requests: the n scheduled requests. `request.tokens[:request.num_tokens]` are the prompt and the output.
            lengths: (n,) planned draft lengths, at least one of them above 0. Fewer tokens may be proposed.
            draws: (n, longest length or more) uniforms in [0, 1) for the requests that sample; zeros for greedy ones.
            gate: asked after each pass which drafts continue; rows are indices of `requests`. None, or ignored by a
                drafter without `calls_gate`.

        Returns:
            The drafts, with one row for each of the n requests, and the drafter's work: rows of each pass, KV tokens
            read, KV lag caught up.
        """
        ...
