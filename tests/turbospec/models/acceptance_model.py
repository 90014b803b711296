"""An acceptance model by itself, whose terms a test can read and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import PRIOR, Memory
from turbospec.models.logistic import REQUEST_COLUMNS, Terms, initial_terms, terms_of
from turbospec.runtime.slots import RequestSlots


def views(shared: Any, requests: FloatArray) -> Terms:
    """The terms of (1,) `SHARED_TERMS` and (capacity, `REQUEST_COLUMNS`) of requests; changes are written through."""
    return terms_of.py_func(shared.view(np.recarray)[0], requests)


USUAL_MEMORY = Memory(400.0, 48.0, float(np.exp(-1.0 / 100.0)))


@dataclass
class AcceptanceModel:
    """A drafter's, of drafts up to `max_draft` tokens, whose acceptance is assumed to be `prior`."""

    max_draft: int
    prior: float = PRIOR
    memory: Memory = USUAL_MEMORY

    def __post_init__(self) -> None:
        self._slots = RequestSlots()
        shared = initial_terms(np.full(self.max_draft, self.prior))
        self.terms = views(shared, np.zeros((self._slots.capacity, REQUEST_COLUMNS)))

    def rows(self, request_ids: IntArray) -> IntArray:
        """(n,) rows of these requests."""
        return self._slots.lookup(request_ids)[0]
