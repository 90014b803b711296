"""What workers are told to do with their drafter in a step, and where they put its drafts.

Imports nothing, because workers read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

ORDERS_ATTRIBUTE = "turbospec_drafter_orders"
"""Of `SchedulerOutput`."""
DRAFTS_ATTRIBUTE = "turbospec_drafts"
"""Of `ModelRunnerOutput`: vLLM's `DraftTokenIds`, where they were there when the step's tokens were."""
DRAFTS_DUE_ATTRIBUTE = "turbospec_drafts_due"
"""Of `SchedulerOutput`: there where the step is to make drafts, which TurboSpec's scheduler takes from its output."""


class KvLag(NamedTuple):
    """What a request's drafter cache lacks: the tokens right before those of the step."""

    tokens: int
    since: int
    """Number of the step that has the first of them."""


@dataclass(slots=True)
class DrafterOrders:
    """For one step."""

    step: int
    """Counts the steps of which something was kept."""
    oldest: int
    """The first of them that may still be asked for, now or later."""
    skip: bool = False
    """Run no pass at all, and keep the step's tokens: all of its requests will have missed theirs."""
    keep: set[str] = field(default_factory=set[str])
    """Requests whose tokens of the step are kept, because they will have missed them."""
    catch_up: dict[str, KvLag] = field(default_factory=dict[str, KvLag])
    """What the step's pass takes along."""
    late: bool = False
    """Draft when asked for the drafts, which is when the step's tokens have left."""


def orders_of(scheduler_output: object) -> DrafterOrders | None:
    """What vLLM's `SchedulerOutput` says of the drafter; None where it is to do what it does by itself."""
    return getattr(scheduler_output, ORDERS_ATTRIBUTE, None)
