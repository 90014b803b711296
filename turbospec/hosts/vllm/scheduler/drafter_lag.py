"""The drafter KV lag of each request in vLLM, and the orders that make the worker's drafter catch up."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from turbospec.hosts.vllm.scheduler.requests import KnownRequest
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag
from turbospec.interface import IntArray


class DrafterLag:
    """Decides, step by step, whether the drafter's first pass is skipped and which requests catch up.

    A pass is skipped where nothing is to be drafted and no drafts are verified: then the lag of each request is known
    without waiting for the device. The step after a draft always runs the drafter. Before the worker can keep no more,
    one pass catches up as many requests as have room, those that lag longest first, if `early` allows it: with 256
    requests and 8,192 kept tokens, one pass every 16 steps.

    Args:
        kept_tokens: tokens whose inputs the worker keeps. A request whose lag reaches further back no longer drafts.
        max_batched_tokens: size of the drafter's buffers. A request catches up before it lags by more than half of it:
            next to the other requests' tokens there may never be room for more.
        slots: rows that the drafter's pass needs for each request besides its tokens.
        prefix_caching: whether other requests may reuse a prompt's KV blocks, the drafter's included. A prompt is then
            caught up in the step after its prefill, once its first token was sent.
    """

    def __init__(self, kept_tokens: int, max_batched_tokens: int, *, slots: int = 1, prefix_caching: bool) -> None:
        self._kept_tokens = kept_tokens
        self._max_batched_tokens = max_batched_tokens
        self._max_lag = min(kept_tokens, max_batched_tokens // 2)
        self._slots = slots
        self._prefix_caching = prefix_caching
        self._kept: deque[int] = deque()
        """Tokens of each step that the worker keeps, oldest step first."""
        self._sum = 0
        self._first = 0
        """Number of the oldest kept step."""

    @property
    def _next(self) -> int:
        return self._first + len(self._kept)

    def can_draft(self, request: KnownRequest) -> bool:
        """Whether the request's lag, if any, can be caught up."""
        return request.lag_tokens == 0 or (request.lag_since >= self._first and request.lag_tokens <= self._max_lag)

    def lose_kept(self) -> None:
        """Take note that the worker drops what it keeps, as it does after a step without orders."""
        self._first = self._next
        self._kept.clear()
        self._sum = 0

    @property
    def kept(self) -> int:
        """Tokens that the worker keeps."""
        return self._sum

    def idle(self, requests: Sequence[KnownRequest], *, early: bool) -> DrafterOrders | None:
        """Orders for a step of one token for each of these requests, without drafts; None where one must catch up.

        The requests' lag is updated as if the step had run.
        """
        if any(request.lacks_prompt and self.can_draft(request) for request in requests):
            return None
        if early and self._catch_up_is_due(requests, len(requests)):
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
        early: bool,
    ) -> DrafterOrders:
        """Orders for one step. The requests' lag is updated as if the step had run.

        Args:
            requests: the n scheduled ones.
            names: of these requests.
            num_scheduled: tokens that the step computes for each of them, drafts included.
            drafted: draft tokens among them, for the requests that have some.
            resumed: requests that start anew after a preemption.
            lengths: (n,) draft lengths; set to 0 for requests that cannot catch up in this step.
            unfinished: whether a prefill chunk is left for later steps; a long prompt may be too much to catch up.
            drafter_fits: whether vLLM calls the drafter at all in this step.
            early: whether requests may catch up that do not draft yet.
        """
        tokens = [num_scheduled[name] for name in names]
        for name, request in zip(names, requests, strict=True):
            if name in resumed:
                request.lag_tokens, request.lacks_prompt = 0, False
        idle = not lengths.any() and not any(drafted.values())
        room = self._max_batched_tokens - sum(tokens) - self._slots * len(names)
        due = (
            early
            and self._catch_up_is_due(requests, sum(tokens))
            and any(0 < request.lag_tokens <= room and self.can_draft(request) for request in requests)
        )
        if idle and (not drafter_fits or (not due and not unfinished and self._all_may_lag(requests, tokens))):
            orders = DrafterOrders(self._next, self._first, skip=True)
            for request, number in zip(requests, tokens, strict=True):
                self._add_lag(request, number)
            self._keep(sum(tokens))
            return orders
        orders, kept = DrafterOrders(self._next, self._first), 0
        rows = range(len(names))
        if due:
            rows = sorted(rows, key=lambda row: requests[row].lag_since)
        for row in rows:
            name, request, number = names[row], requests[row], tokens[row]
            lag = request.lag_tokens
            if lag == 0:
                continue
            wanted = drafter_fits and (due or lengths[row] or request.lacks_prompt)
            if wanted and lag <= room and self.can_draft(request):
                room -= lag
                orders.catch_up[name] = KvLag(lag, request.lag_since)
                request.lag_tokens, request.lacks_prompt = 0, False
            else:
                lengths[row] = 0
                self._add_lag(request, number)
                orders.keep.add(name)
                kept += number
        if due:
            self._release(requests)
        if orders.keep:
            self._keep(kept)
        return orders

    def _catch_up_is_due(self, requests: Sequence[KnownRequest], tokens: int) -> bool:
        """Whether half of the tokens that can be kept, or that a request may lag by, would be reached.

        Half, because the next steps may be full of prompts and have no room for catching up.
        """
        if 2 * (self._sum + tokens) > self._kept_tokens:
            return True
        return any(2 * request.lag_tokens >= self._max_lag and self.can_draft(request) for request in requests)

    def _release(self, requests: Sequence[KnownRequest]) -> None:
        """Drop the kept steps before the first that one of a step's requests still needs."""
        oldest = min(
            (request.lag_since for request in requests if request.lag_tokens and self.can_draft(request)),
            default=self._next,
        )
        while self._first < oldest:
            self._sum -= self._kept.popleft()
            self._first += 1

    def _all_may_lag(self, requests: Sequence[KnownRequest], tokens: Sequence[int]) -> bool:
        # Prompts of more than half of the kept tokens would evict one another.
        return 2 * sum(tokens) <= self._kept_tokens and all(map(self._may_lag, requests, tokens))

    def _may_lag(self, request: KnownRequest, tokens: int) -> bool:
        """Whether the request can catch up on this step's tokens later."""
        if request.lacks_prompt and self.can_draft(request):
            return False
        if tokens > 1 and request.one_token and self._prefix_caching:
            return False  # the request has no later step
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
