from __future__ import annotations

import numpy as np

from turbospec.hosts.vllm.drafter_cache import DrafterCache
from turbospec.hosts.vllm.drafter_orders import DrafterOrders
from turbospec.hosts.vllm.requests import KnownRequest


class Steps:
    """Steps over the same requests, by name."""

    def __init__(self, names: str, *, max_missed: int = 8, max_batched_tokens: int = 64) -> None:
        self.cache = DrafterCache(max_missed, max_batched_tokens)
        self.known = {name: KnownRequest(number, None, 0) for number, name in enumerate(names)}
        self.lengths = np.zeros(0, np.int64)

    def step(self, drafted: dict[str, int] | None = None, prompts: dict[str, int] | None = None, **lengths: int):
        """One in which `drafted` are verified, `prompts` computed, and `lengths` wanted."""
        drafted, prompts = drafted or {}, prompts or {}
        scheduled = {name: prompts.get(name, 1 + drafted.get(name, 0)) for name in self.known}
        self.lengths = np.array([lengths.get(name, 0) for name in self.known])
        return self.cache.orders(list(self.known), list(self.known.values()), scheduled, drafted, self.lengths)

    @property
    def missed(self) -> list[int]:
        return [request.missed_tokens for request in self.known.values()]


def test_a_step_of_single_tokens_that_drafts_nothing_needs_no_drafter() -> None:
    steps = Steps("ab")
    assert steps.step() == DrafterOrders(skip=True, keep=True)
    assert steps.step() == DrafterOrders(skip=True, keep=True)
    assert steps.missed == [2, 2]


def test_who_drafts_is_caught_up_and_the_others_go_on_missing() -> None:
    steps = Steps("ab")
    steps.step()
    assert steps.step(a=3) == DrafterOrders(keep=True, catch_up={"a": 1})
    assert steps.missed == [0, 2]
    # Rejected drafts go through the drafter with what was accepted: nobody knows yet how many.
    assert steps.step(drafted={"a": 3}) == DrafterOrders(keep=True)
    assert steps.missed == [0, 3]
    assert steps.step(b=1) == DrafterOrders(catch_up={"b": 3})


def test_prompts_go_through_the_drafter() -> None:
    steps = Steps("ab")
    steps.step()
    assert steps.step(prompts={"b": 20}) == DrafterOrders(keep=True)
    assert steps.missed == [2, 0]


def test_no_more_is_caught_up_than_the_buffers_hold() -> None:
    steps = Steps("abc", max_batched_tokens=10)
    for _ in range(3):
        steps.step()
    orders = steps.step(a=2, b=2, c=2)
    assert orders.catch_up == {"a": 3}
    assert steps.lengths.tolist() == [2, 0, 0]
    assert steps.missed == [0, 4, 4]


def test_who_lacks_too_much_cannot_draft() -> None:
    steps = Steps("a", max_missed=2)
    steps.step()
    assert steps.cache.can_draft(steps.known["a"])
    steps.step()
    assert not steps.cache.can_draft(steps.known["a"])
    steps.step(prompts={"a": 9})  # preempted, and computed again
    assert steps.cache.can_draft(steps.known["a"])
