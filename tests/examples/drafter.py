"""A drafter of your own: proposes what followed the request's last token when it occurred before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec import DraftGate
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.request import Request


class LastOccurrence:
    """Copies the tokens after the latest earlier occurrence of the request's last token. Runs no model."""

    parallel = True  # one pass proposes all positions
    calls_gate = False
    max_model_len = None  # reads contexts of any length
    hidden_states = None  # reads tokens, not the target's hidden states

    def lag_tokens(self, request: Request) -> int:
        return 0  # keeps no KV cache

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        draft = Draft.empty(len(requests))
        draft.tokens = np.zeros((len(requests), int(lengths.max())), np.int64)
        for row in np.flatnonzero(lengths).tolist():
            tokens = requests[row].tokens[: requests[row].num_tokens]
            earlier = np.flatnonzero(tokens[:-1] == tokens[-1])
            if len(earlier):
                found = tokens[earlier[-1] + 1 :][: lengths[row]]
                draft.tokens[row, : len(found)] = found
                draft.proposed[row] = draft.drafted[row] = len(found)
        draft.draft_rows = np.array([draft.proposed.sum()])
        return draft
