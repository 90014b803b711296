"""What a worker is told to do with its drafter in a step; imports nothing, because workers read it."""

from __future__ import annotations

from dataclasses import dataclass, field

ORDERS_ATTRIBUTE = "turbospec_drafter_orders"
"""Of `SchedulerOutput`."""


@dataclass(slots=True)
class DrafterOrders:
    """For one step."""

    skip: bool = False
    """Run no pass at all."""
    keep: bool = False
    """Keep a token of each request, because some will have missed it."""
    catch_up: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens that each of these requests has missed; the step's pass takes them along."""
