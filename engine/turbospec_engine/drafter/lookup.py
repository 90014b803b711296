"""A look-up as the only source of drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospec import DraftGate
from turbospec.interface import FloatArray, IntArray
from turbospec_engine.draft import Draft
from turbospec_engine.lookup import Lookup
from turbospec_engine.request import Request


class LookupDrafter:
    """Drafts what a look-up finds, which is searched for once the draft lengths are planned.

    It runs no model and has no KV cache. It proposes fewer tokens than planned where less is found.
    """

    parallel = True
    calls_gate = False
    max_model_len = None
    hidden_states = None

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup

    def lag_tokens(self, request: Request) -> int:
        return 0

    def propose(
        self, requests: Sequence[Request], lengths: IntArray, draws: FloatArray, gate: DraftGate | None
    ) -> Draft:
        found = self.lookup.find(requests, lengths)
        draft = Draft(found.tokens, found.lengths, found.lengths.copy())
        draft.draft_rows = np.array([found.lengths.sum()])
        return draft
