"""What `adaptive` has learnt, in two arrays: a record shared by all requests, and a row of numbers for each request.

Compiled functions take both as a whole: each array that is passed to one takes time, above all if the engine's models
have pushed it out of the processor's caches since the last step.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from turbospec.interface import FloatArray, IntArray
from turbospec.models.acceptance import initial_acceptance, initial_lookup_acceptance
from turbospec.models.latency import LatencyModel
from turbospec.models.logistic import REQUEST_COLUMNS, SHARED_TERMS, SharedTerms, Terms, terms_of
from turbospec.models.step_cost import STEP_COST, StepCost, initial_cost
from turbospec.policy.adaptive.constants import Constants
from turbospec.runtime.kernels import inlined
from turbospec.runtime.slots import RequestSlots

TOKENS_PER_STEP = 0
"""Column of a request's tokens per step (`turbospec.planning.token_weights`); 0 where unknown."""
OF_DRAFTER = TOKENS_PER_STEP + 1
OF_LOOKUP = OF_DRAFTER + REQUEST_COLUMNS
OF_APPENDED = OF_LOOKUP + REQUEST_COLUMNS
"""First columns of the requests' terms, of each acceptance model."""
COLUMNS = OF_APPENDED + REQUEST_COLUMNS


class Server(Protocol):
    """State beside the models, one record of `SERVER`."""

    unforeseen_share: float
    """Share of steps that requests join after the plan was made."""
    unforeseen_tokens: float
    """Mean prompt tokens of these requests per step."""
    prompt_share: float
    """Share of steps with prompts."""
    prompt_tokens: float
    """Mean prompt tokens of a step."""
    budget: float
    """Seconds that experiments may lose."""
    budget_limit: float
    """Largest budget, a few steps without drafts; 0 before the first measured step without prompts."""
    saving: float
    """Seconds that the budget is saved for: the loss of the cheapest experiment that is worth it, where the budget does
    not cover it; 0 for none."""
    refused_at: int
    """Last step in which an experiment was considered and none ran."""
    settled: bool
    """Whether no draft would have paid in that step even if all estimates were better by a standard deviation."""
    drafting_share: float
    """Share of steps in which the drafter drafted lately; 1 before the first."""
    limited_share: float
    """Share of steps with `StepView.prefill_limited`."""
    drafter_kv_share: float
    """Mean `StepView.drafter_kv_share`."""
    found_share: float
    """Mean tokens that the look-up appended, as a share of those that the plan allowed; 1 before the first."""


class Shared(Protocol):
    """What all requests share, one record of `SHARED`."""

    server: Server
    cost: StepCost
    constants: Constants
    drafter: SharedTerms
    """Of the drafter's acceptance model."""
    lookup: SharedTerms
    """Of the look-up's."""
    appended: SharedTerms
    """Of that of tokens which the look-up appends."""


SERVER = np.dtype(
    [
        ("unforeseen_share", np.float64),
        ("unforeseen_tokens", np.float64),
        ("prompt_share", np.float64),
        ("prompt_tokens", np.float64),
        ("budget", np.float64),
        ("budget_limit", np.float64),
        ("saving", np.float64),
        ("refused_at", np.int64),
        ("settled", np.bool_),
        ("drafting_share", np.float64),
        ("limited_share", np.float64),
        ("drafter_kv_share", np.float64),
        ("found_share", np.float64),
    ]
)
CONSTANTS = np.dtype([(name, type(value)) for name, value in Constants()._asdict().items()])
SHARED = np.dtype(
    [
        ("server", SERVER),
        ("constants", CONSTANTS),
        ("cost", STEP_COST),
        ("drafter", SHARED_TERMS),
        ("lookup", SHARED_TERMS),
        ("appended", SHARED_TERMS),
    ]
)


class AdaptiveState:
    """Owns the arrays.

    Args:
        constants: of the policy.
        latency: a fitted model; None to learn one from the first steps.
    """

    def __init__(self, constants: Constants, latency: LatencyModel | None) -> None:
        self.shared: Any = np.zeros(1, SHARED)
        """(1,) `SHARED`, an array of one `Shared`."""
        self.shared["constants"][0] = tuple(constants)
        self.shared["cost"] = initial_cost(latency)
        self.shared["server"]["refused_at"] = -constants.pause_steps
        self.shared["server"]["found_share"] = self.shared["server"]["drafting_share"] = 1.0
        self.start(1)

    def start(self, max_draft: int) -> None:
        """Forget acceptance and requests, and model drafts of up to `max_draft` tokens from now on."""
        self.max_draft = max_draft
        self.slots = RequestSlots()
        self.requests: FloatArray = np.zeros((self.slots.capacity, COLUMNS))
        """(capacity, COLUMNS) a row for each request."""
        self.shared["drafter"] = initial_acceptance(max_draft)
        self.shared["lookup"] = self.shared["appended"] = initial_lookup_acceptance()

    def rows(self, request_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Rows of a step's requests, and those of them that were assigned now; these are all 0."""
        rows, new = self.slots.lookup(request_ids)
        if len(new):
            missing = self.slots.capacity - len(self.requests)
            if missing:
                self.requests = np.concatenate([self.requests, np.zeros((missing, COLUMNS))])
            self.requests[new] = 0.0
        return rows, new


@inlined
def drafter_terms(shared: Shared, requests: FloatArray) -> Terms:
    """The drafter's acceptance model."""
    return terms_of(shared.drafter, requests[:, OF_DRAFTER:OF_LOOKUP])


@inlined
def lookup_terms(shared: Shared, requests: FloatArray) -> Terms:
    """The look-up's."""
    return terms_of(shared.lookup, requests[:, OF_LOOKUP:OF_APPENDED])


@inlined
def appended_terms(shared: Shared, requests: FloatArray) -> Terms:
    """That of tokens which the look-up appends."""
    return terms_of(shared.appended, requests[:, OF_APPENDED:])
