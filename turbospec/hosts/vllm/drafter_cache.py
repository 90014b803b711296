"""How much each request's drafter cache lacks in vLLM, and what its drafter is told to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turbospec.hosts.vllm.drafter_orders import DrafterOrders
from turbospec.hosts.vllm.requests import KnownRequest
from turbospec.types import IntArray


class DrafterCache:
    """Decides, step by step, whether the drafter's first pass is left out and who is caught up.

    A pass is left out where nothing is to be drafted and every request computes a single token: then what each misses
    is one token, known without waiting for the device. Prompts, and what follows rejected drafts, always go through
    the drafter.

    Args:
        max_missed: tokens behind which a request is not caught up any more; it then drafts no more.
        max_batched_tokens: room in the drafter's buffers.
    """

    def __init__(self, max_missed: int, max_batched_tokens: int) -> None:
        self.max_missed = max_missed
        self._max_batched_tokens = max_batched_tokens

    def can_draft(self, request: KnownRequest) -> bool:
        return request.missed_tokens < self.max_missed

    def orders(
        self,
        names: Sequence[str],
        requests: Sequence[KnownRequest],
        num_scheduled: Mapping[str, int],
        drafted: Mapping[str, int],
        lengths: IntArray,
    ) -> DrafterOrders:
        """Decide for one step, and take it that it is done.

        Args:
            names: of the n scheduled requests.
            requests: the same; what they have missed is brought up to date.
            num_scheduled: tokens that the step computes for each of them, drafts included.
            drafted: draft tokens among them, for the requests that have some.
            lengths: (n,) draft lengths; those for whom there is no room are set to 0.
        """
        total = sum(num_scheduled[name] for name in names)
        for name, request in zip(names, requests, strict=True):
            if num_scheduled[name] - drafted.get(name, 0) > 1:
                # A prompt, or one computed again after a preemption: the drafter gets all of it.
                request.missed_tokens = 0
        if not lengths.any() and total == len(names):
            for request in requests:
                request.missed_tokens += 1
            return DrafterOrders(skip=True, keep=True)
        # Drafters that take the next token along need a place more for each request.
        room = self._max_batched_tokens - total - len(names)
        orders = DrafterOrders()
        for row, (name, request) in enumerate(zip(names, requests, strict=True)):
            if request.missed_tokens == 0:
                continue
            if lengths[row] and request.missed_tokens <= room:
                room -= request.missed_tokens
                orders.catch_up[name] = request.missed_tokens
                request.missed_tokens = 0
            else:
                lengths[row] = 0
                request.missed_tokens += 1
                orders.keep = True
        return orders
