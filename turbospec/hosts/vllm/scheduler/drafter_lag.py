"""The drafter KV lag of each request in vLLM, and the orders that make the worker's drafter catch up."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from turbospec.hosts.vllm.scheduler.drafter_use import Allowance
from turbospec.hosts.vllm.scheduler.kernels import can_catch_up
from turbospec.hosts.vllm.scheduler.requests import KnownRequests
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag
from turbospec.interface import BoolArray, IntArray

MISSES = 2
"""Drafts of a look-up in a row that are rejected in full, after which the text has probably ceased to repeat."""


class DrafterLag:
    """Decides, step by step, whether the drafter's first pass is skipped and which requests catch up.

    A pass is skipped where nothing is to be drafted. Where the step verifies drafts, the worker keeps their input with
    the rest, and is told how many were accepted once the step has ended (`resolve`). Before the worker can keep no
    more, one pass catches up as many requests as have room, those that lag longest first, if the `Allowance` is enough:
    with 256 requests and 8,192 kept tokens, one pass in 16 steps.

    Args:
        known: the requests, whose lag is kept there.
        kept_tokens: tokens whose inputs the worker keeps. A request whose lag reaches further back no longer drafts.
        max_batched_tokens: size of the drafter's buffers. A request catches up before it lags by more than half of it:
            next to the other requests' tokens there may never be room for more.
        slots: rows that the drafter's pass needs for each request besides its tokens.
        prefix_caching: whether other requests may reuse a prompt's KV blocks, the drafter's included. A prompt is then
            caught up in the step after its prefill, once its first token was sent.
        asynchronous: whether a step is scheduled before it is known what the one before has accepted. A request cannot
            catch up on drafts of which that is not known.
    """

    def __init__(
        self,
        known: KnownRequests,
        kept_tokens: int,
        max_batched_tokens: int,
        *,
        slots: int = 1,
        prefix_caching: bool,
        asynchronous: bool = False,
    ) -> None:
        self._known = known
        self._kept_tokens = kept_tokens
        self._max_batched_tokens = max_batched_tokens
        self._max_lag = min(kept_tokens, max_batched_tokens // 2)
        self._slots = slots
        self._prefix_caching = prefix_caching
        self._asynchronous = asynchronous
        self._kept: deque[int] = deque()
        """Tokens of each step that the worker keeps, oldest step first."""
        self._sum = 0
        self._first = 0
        """Number of the oldest kept step."""
        self._resolved: dict[int, dict[str, int]] = {}
        """What the next orders tell of kept steps."""

    @property
    def _next(self) -> int:
        return self._first + len(self._kept)

    def can_draft(self, rows: IntArray) -> BoolArray:
        """(n,) whether each request's lag, if any, can be caught up.

        Args:
            rows: (n,) in `KnownRequests`, here and below.
        """
        known = self._known
        return can_catch_up(rows, known.lag_tokens, known.lag_since, known.unresolved, self.catch_up_limits)

    @property
    def catch_up_limits(self) -> tuple[int, int, bool]:
        """The oldest kept step, most tokens that one pass catches up, and whether unresolved drafts prevent it."""
        return self._first, self._max_lag, self._asynchronous

    def pauses_lookup(self, rows: IntArray) -> BoolArray:
        """(n,) whether each request should verify no drafts of a look-up until the drafter can draft for it.

        Under async scheduling a request cannot catch up while it verifies drafts of a look-up in every step. Where the
        last ones were rejected in full, it goes without them for two steps, and the policy can choose the source again.
        """
        return self._asynchronous & (self._known.unresolved[rows] > 0) & (self._known.misses[rows] >= MISSES)

    def lose_kept(self) -> None:
        """Take note that the worker drops what it keeps, as it does after a step without orders.

        All requests may draft again. Where one lagged, the drafter continues with an incomplete KV cache, as after an
        error in the worker: fewer of its drafts are accepted.
        """
        self._first = self._next
        self._kept.clear()
        self._sum = 0
        self._resolved = {}
        self._known.clear_lag(slice(None))

    def resolve(self, step: int, accepted: Mapping[str, int]) -> None:
        """Take note of how many drafts a step has accepted, for each request that lags by drafts of it.

        Args:
            step: number of the kept step.
            accepted: by request. Those that were preempted since, or have ended, are ignored.
        """
        known, told = self._known, {}
        for name, number in accepted.items():
            row = known.row(name)
            if row is not None and known.unresolved[row] and known.lag_since[row] <= step:
                known.lag_tokens[row] += number
                known.unresolved[row] -= 1
                known.misses[row] = 0 if number else known.misses[row] + 1
                told[name] = 1 + number
        if told:
            self._resolved[step] = told

    def drop_unneeded(self) -> None:
        """Drop kept steps that only finished requests lacked, once half of the tokens that can be kept are.

        To be called before a step's orders are made.
        """
        if self._half_are_kept(0):
            self._release()

    @property
    def kept(self) -> int:
        """Tokens that the worker keeps."""
        return self._sum

    def idle_orders(self, rows: IntArray, allowed: Allowance) -> DrafterOrders | None:
        """Orders for a step of one token for each of these requests, without drafts; None where one must catch up.

        The requests' lag is updated as if the step had run.
        """
        if self._prefix_caching and (self._known.lacks_prompt[rows] & self.can_draft(rows)).any():
            return None
        if self._may_catch_up(allowed) and self._catch_up_is_due(rows, len(rows)):
            return None
        orders = self._new_orders(skip=True)
        self._add_lag(rows, np.ones(len(rows), np.int64))
        self._keep(len(rows))
        return orders

    def orders(
        self,
        names: Sequence[str],
        rows: IntArray,
        tokens: IntArray,
        drafts: IntArray,
        lengths: IntArray,
        missing: IntArray,
        allowed: Allowance,
        *,
        drafter_fits: bool,
    ) -> DrafterOrders:
        """Orders for one step. The requests' lag is updated as if the step had run.

        Args:
            names: of the n scheduled requests.
            rows: (n,) of these requests.
            tokens: (n,) tokens that the step computes for each of them, drafts included.
            drafts: (n,) drafts among these.
            lengths: (n,) draft lengths; set to 0 for requests that cannot catch up in this step.
            missing: (n,) prefill tokens that are left for later steps.
            allowed: for the step, should the drafter not draft in it.
            drafter_fits: whether vLLM calls the drafter at all in this step.
        """
        known = self._known
        lag = known.lag_tokens[rows]
        if lengths.any() and not lag.any():  # the drafter computes all of the step, and nothing else
            return self._new_orders(skip=False)
        can_draft, total, draft_tokens = self.can_draft(rows), int(tokens.sum()), int(drafts.sum())
        room = self._max_batched_tokens - total - self._slots * len(names)
        due = self._may_catch_up(allowed) and self._catch_up_is_due(rows, total)
        due = due and bool(((lag > 0) & (lag <= room) & can_draft).any())
        computed = tokens - drafts
        if not lengths.any() and (
            not drafter_fits
            or (allowed.permits_lag(draft_tokens) and not due and self._all_may_lag(rows, computed, missing, allowed))
        ):
            orders = self._new_orders(skip=True)
            self._fall_behind(rows, computed, drafts)
            self._keep(total)
            return orders
        orders = self._new_orders(skip=False)
        lagging = np.flatnonzero(lag)
        if not len(lagging):
            return orders
        if due:
            lagging = lagging[np.argsort(known.lag_since[rows[lagging]], kind="stable")]
        wanted = np.full(len(names), due) | (lengths > 0) | (drafts > 0) | known.lacks_prompt[rows]
        wanted |= tokens > 1  # a prompt in chunks, whose earlier chunks lag
        wanted &= can_draft & drafter_fits
        caught_up = _fitting(lagging[wanted[lagging]], lag, room)
        for place in caught_up:
            orders.catch_up[names[place]] = KvLag(int(lag[place]), int(known.lag_since[rows[place]]))
        known.clear_lag(rows[caught_up])
        stays = np.ones(len(names), np.bool_)
        stays[caught_up] = False
        left = lagging[stays[lagging]]
        lengths[left] = 0
        self._fall_behind(rows[left], computed[left], drafts[left])
        orders.keep.update(names[place] for place in map(int, left))
        if due:
            self._release()
        if len(left):
            self._keep(int(tokens[left].sum()))
        return orders

    def _new_orders(self, *, skip: bool) -> DrafterOrders:
        resolved, self._resolved = self._resolved, {}
        return DrafterOrders(self._next, self._first, skip=skip, resolved=resolved)

    def _catch_up_is_due(self, rows: IntArray, tokens: int) -> bool:
        """Whether half of the tokens that can be kept, or that a request may lag by, would be reached."""
        if self._half_are_kept(tokens):
            return True
        return bool(((2 * self._known.lag_tokens[rows] >= self._max_lag) & self.can_draft(rows)).any())

    def _half_are_kept(self, tokens: int) -> bool:
        """Whether more than half of the tokens that can be kept are, these included.

        Half, because the next steps may be full of prompts and have no room for catching up.
        """
        return 2 * (self._sum + tokens) > self._kept_tokens

    def _release(self) -> None:
        """Drop the kept steps before the first that a request still needs."""
        known, lag, limits = self._known, self._known.lag_tokens, (self._first, self._max_lag, False)
        can = can_catch_up(np.arange(len(lag)), lag, known.lag_since, known.unresolved, limits)
        oldest = int(known.lag_since[(lag > 0) & can].min(initial=self._next))
        while self._first < oldest:
            self._sum -= self._kept.popleft()
            self._first += 1

    def _all_may_lag(self, rows: IntArray, tokens: IntArray, missing: IntArray, allowed: Allowance) -> bool:
        """Whether the drafter may skip this step's tokens.

        While it is in use: if all requests can catch up on them later, and on the rest of their prompts.
        """
        known, prompts, total = self._known, tokens > 1, int(tokens.sum())
        # Prompts of more than half of the kept tokens would evict one another. Where a prompt continues in the next
        # step, that step is full of prompts too and has no room for catching up.
        evicted = 2 * total > self._kept_tokens or (bool(missing.any()) and self._half_are_kept(total))
        if allowed.in_use and evicted:
            return False
        if self._prefix_caching:
            # A request of one token has no later step.
            due_now = known.lacks_prompt[rows] & ~prompts & self.can_draft(rows)
            if (due_now | (prompts & (known.max_tokens[rows] <= 1))).any():
                return False
        lag, left = known.lag_tokens[rows], tokens + missing
        too_long = prompts & (lag + left > self._max_lag)
        if not too_long.any():
            return True
        if allowed.in_use:
            return False
        # A prompt is computed to its end or not at all.
        begins = too_long & (known.prompt[rows] <= left)
        goes_on = too_long & ~begins & (lag == 0)
        return not goes_on.any() and (not begins.any() or int(left[begins].sum()) > allowed.tokens)

    def _may_catch_up(self, allowed: Allowance) -> bool:
        """Whether requests may catch up that do not draft yet."""
        if not allowed.in_use:
            return False
        self.drop_unneeded()  # otherwise it would count as tokens to be caught up
        return self._sum <= allowed.tokens

    def _fall_behind(self, rows: IntArray, computed: IntArray, drafts: IntArray) -> None:
        """Take note that the drafter leaves out a step's tokens of these requests, and the drafts that it verifies."""
        self._add_lag(rows, computed)
        self._known.unresolved[rows[drafts > 0]] += 1

    def _add_lag(self, rows: IntArray, tokens: IntArray) -> None:
        known = self._known
        lag = known.lag_tokens[rows]
        known.lag_since[rows[lag == 0]] = self._next
        known.lag_tokens[rows] = lag + tokens
        if self._prefix_caching:
            known.lacks_prompt[rows] |= tokens > 1

    def _keep(self, tokens: int) -> None:
        self._kept.append(tokens)
        self._sum += tokens
        while self._sum > self._kept_tokens:
            self._sum -= self._kept.popleft()
            self._first += 1


def _fitting(places: IntArray, lag: IntArray, room: int) -> list[int]:
    """Those of these places, in their order, whose requests' lag fits in one pass; `lag` is (n,), `room` in tokens."""
    fitting: list[int] = []
    for place in map(int, places):
        if lag[place] <= room:
            room -= int(lag[place])
            fitting.append(place)
    return fitting
