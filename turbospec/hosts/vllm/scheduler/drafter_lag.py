"""How much each request's drafter cache lacks in vLLM, and what its drafter is told to do about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from turbospec.hosts.vllm.scheduler.requests import KnownRequest
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag
from turbospec.interface import IntArray


class DrafterLag:
    """Decides, step by step, whether the drafter's first pass is left out and who is caught up.

    A pass is left out where nothing is to be drafted and no drafts are verified: then what each request misses is
    known without waiting for the device. What follows drafts always goes through the drafter.

    Args:
        kept_tokens: tokens that the worker keeps; who lacks older ones drafts no more.
        max_batched_tokens: room in the drafter's buffers. Who lacks more than half of it drafts no more either: beside
            the others' tokens there may never be room to catch up.
        prefix_caching: whether a prompt's blocks may serve other requests, which will count on the drafter's part of
            them. A prompt is then caught up in the step after it, when its first token has left.
    """

    def __init__(self, kept_tokens: int, max_batched_tokens: int, *, prefix_caching: bool) -> None:
        self._kept_tokens = kept_tokens
        self._max_batched_tokens = max_batched_tokens
        self._max_lag = min(kept_tokens, max_batched_tokens // 2)
        self._prefix_caching = prefix_caching
        self._kept: deque[int] = deque()
        """Tokens of each step that the worker keeps, oldest first."""
        self._sum = 0
        self._first = 0
        """Number of the first of them."""

    @property
    def _next(self) -> int:
        return self._first + len(self._kept)

    def can_draft(self, request: KnownRequest) -> bool:
        return request.lag_tokens == 0 or (request.lag_since >= self._first and request.lag_tokens <= self._max_lag)

    def idle(self, requests: Sequence[KnownRequest]) -> DrafterOrders | None:
        """Decide for a step of one token for each of these requests, without drafts, and take it that it is done; None
        where somebody is to be caught up."""
        if any(request.lacks_prompt and self.can_draft(request) for request in requests):
            return None
        orders = DrafterOrders(self._next, self._first, skip=True)
        for request in requests:
            if request.lag_tokens == 0:
                request.lag_since = orders.step
            request.lag_tokens += 1
        self._keep(len(requests))
        return orders

    def orders(
        self,
        requests: Sequence[KnownRequest],
        names: Sequence[str],
        num_scheduled: Mapping[str, int],
        drafted: Mapping[str, int],
        resumed: Collection[str],
        lengths: IntArray,
        *,
        unfinished: bool,
        drafter_fits: bool,
    ) -> DrafterOrders:
        """Decide for one step, and take it that it is done.

        Args:
            requests: the n scheduled ones; what they have missed is brought up to date.
            names: theirs.
            num_scheduled: tokens that the step computes for each of them, drafts included.
            drafted: draft tokens among them, for the requests that have some.
            resumed: those that start anew after a preemption.
            lengths: (n,) draft lengths; those for whom there is no room are set to 0.
            unfinished: whether a part of some prompt is left for later steps; all of it could be too much to catch up.
            drafter_fits: whether vLLM calls the drafter at all, whatever it is told.
        """
        tokens = [num_scheduled[name] for name in names]
        for name, request in zip(names, requests, strict=True):
            if name in resumed:
                request.lag_tokens, request.lacks_prompt = 0, False
        idle = not lengths.any() and not any(drafted.values())
        if idle and (not drafter_fits or (not unfinished and self._all_may_lag(requests, tokens))):
            orders = DrafterOrders(self._next, self._first, skip=True)
            for request, number in zip(requests, tokens, strict=True):
                self._add_lag(request, number)
            self._keep(sum(tokens))
            return orders
        # Drafters that take the next token along need a place more for each request.
        room = self._max_batched_tokens - sum(tokens) - len(names)
        orders, kept = DrafterOrders(self._next, self._first), 0
        for row, (name, request, number) in enumerate(zip(names, requests, tokens, strict=True)):
            missed = request.lag_tokens
            if missed == 0:
                continue
            wanted = drafter_fits and (lengths[row] or request.lacks_prompt)
            if wanted and missed <= room and self.can_draft(request):
                room -= missed
                orders.catch_up[name] = KvLag(missed, request.lag_since)
                request.lag_tokens, request.lacks_prompt = 0, False
            else:
                lengths[row] = 0
                self._add_lag(request, number)
                orders.keep.add(name)
                kept += number
        if orders.keep:
            self._keep(kept)
        return orders

    def _all_may_lag(self, requests: Sequence[KnownRequest], tokens: Sequence[int]) -> bool:
        # More prompts than half of what is kept would push one another out.
        return 2 * sum(tokens) <= self._kept_tokens and all(map(self._may_lag, requests, tokens))

    def _may_lag(self, request: KnownRequest, tokens: int) -> bool:
        """Whether what this step computes for a request can be caught up later."""
        if request.lacks_prompt and self.can_draft(request):
            return False
        if tokens > 1 and request.one_token and self._prefix_caching:
            return False  # it has no later step
        return tokens == 1 or request.lag_tokens + tokens <= self._max_lag

    def _add_lag(self, request: KnownRequest, tokens: int) -> None:
        if request.lag_tokens == 0:
            request.lag_since = self._next
        request.lag_tokens += tokens
        request.lacks_prompt = self._prefix_caching and (request.lacks_prompt or tokens > 1)

    def _keep(self, tokens: int) -> None:
        self._kept.append(tokens)
        self._sum += tokens
        while self._sum > self._kept_tokens:
            self._sum -= self._kept.popleft()
            self._first += 1
