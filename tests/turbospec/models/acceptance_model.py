"""An acceptance model by itself, whose terms a test can read and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import PRIOR, Memory
from turbospec.models.logistic import REQUEST_COLUMNS, Terms, initial_terms
from turbospec.runtime.slots import RequestSlots


def views(shared: Any, requests: FloatArray) -> Terms:
    """The terms of (1,) `SHARED_TERMS` and (capacity, `REQUEST_COLUMNS`) of requests; changes are written through."""
    features, record = int(shared["features"][0]), {name: shared[name][0] for name in shared.dtype.names}
    return Terms(
        prior=record["prior"][:features],
        level=record["level"],
        offsets=record["offsets"][:, :features],
        classes=record["classes"],
        requests=requests,
        between_request=record["between_request"],
        slope=record["slope"],
        covariate=record["covariate"][:, :features],
        covariate_spread=record["covariate_spread"],
    )


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
