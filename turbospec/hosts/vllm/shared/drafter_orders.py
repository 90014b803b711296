"""Orders from the scheduler to the worker's drafter, and the attributes that carry orders and drafts.

Imports nothing heavy, because workers import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ORDERS_ATTRIBUTE = "turbospec_drafter_orders"
"""Of `SchedulerOutput`."""
DRAFTS_ATTRIBUTE = "turbospec_drafts"
"""Of `ModelRunnerOutput`: vLLM's `DraftTokenIds`, where the drafts were ready with the step's tokens."""
DRAFTS_EXPECTED_ATTRIBUTE = "turbospec_drafts_expected"
"""Of `SchedulerOutput`: set where the step drafts; its output brings the drafts where they are ready by then."""


class KvLag(NamedTuple):
    """A request's drafter KV lag: the tokens right before those of the step."""

    tokens: int
    since: int
    """Number of the kept step with the first of them."""


@dataclass(slots=True)
class DrafterOrders:
    """For one step."""

    step: int
    """Counts the steps whose inputs the worker keeps, from 0."""
    oldest: int
    """The oldest kept step that may still be needed."""
    skip: bool = False
    """Run no pass, and keep the inputs of all of the step's requests."""
    keep: set[str] = field(default_factory=set[str])
    """Requests that stay out of the step's pass; their inputs are kept."""
    catch_up: dict[str, KvLag] = field(default_factory=dict[str, KvLag])
    """The lag that the step's pass computes as well, by request."""
    resolved: Mapping[int, Mapping[str, int]] = field(default_factory=dict[int, dict[str, int]])
    """Of kept steps that verified drafts and have ended since the last orders: by step and request, how many of the
    request's tokens in the step are valid, the first one and the accepted drafts. The others are rejected drafts."""
    late: bool = False
    """Run the drafter only when the engine core asks for drafts, which is after the step's tokens were sent."""


def orders_of(scheduler_output: object) -> DrafterOrders | None:
    """The orders in vLLM's `SchedulerOutput`; None where the drafter runs as in vLLM."""
    return getattr(scheduler_output, ORDERS_ATTRIBUTE, None)
