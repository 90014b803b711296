"""What vLLM's workers do with a step, in numbers of tokens: sample, keep the drafter's input, draft."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turbospec.hosts.vllm.scheduler.views import EngineLimits
from turbospec.hosts.vllm.shared.drafter_orders import orders_of

END = 0
"""The token that ends a request."""


@dataclass
class Dispatched:
    """A step under way."""

    output: Any
    """vLLM's `SchedulerOutput`."""
    starts: dict[str, int]
    """Computed tokens of the requests that start, or start anew."""
    samples: set[str]
    """Requests whose prefill ends or has ended."""
    lengths: dict[str, int] | None
    """K of each request, empty where all are 0; None where vLLM chose it."""
    requests: dict[str, Any]
    """vLLM's objects."""
    numbers: dict[int, str]
    """The requests by their ids in views."""
    disturbed: bool = False
    """Whether the loop has had an error since the step was scheduled."""
    verified: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Drafts of each request that were verified and accepted, once it has run."""
    _before: dict[str, int] | None = None
    _sent: dict[str, int] | None = None

    def ends(self) -> None:
        """To be called before vLLM gets the step's output."""
        self._before = {name: request.num_output_tokens for name, request in self.requests.items()}

    def sent(self) -> dict[str, int]:
        """Tokens that vLLM has sent of the output; to be called first when it has just got it."""
        if self._sent is None:
            assert self._before is not None
            self._sent = {
                name: request.num_output_tokens - self._before[name] for name, request in self.requests.items()
            }
        return self._sent


class Worker:
    """A worker that finds out whether it can do what it is told to.

    Args:
        limits: of the engine.
        rng: draws what is accepted, sampled and drafted.
        note: called with an order that cannot be followed.
    """

    def __init__(self, limits: EngineLimits, rng: random.Random, note: Callable[[str], None]) -> None:
        self._limits, self._rng, self._note = limits, rng, note
        self._computed: dict[str, int] = {}
        self._kept: deque[tuple[int, dict[str, range]]] = deque()
        """Positions of each request in each kept step."""
        self._lacking: dict[str, list[int]] = {}
        """Positions that each request's part of the drafter's KV cache lacks."""
        self.incomplete: set[str] = set()
        """Requests that may draft nevertheless, after an error in the loop."""
        self.ends = 0.05
        """Probability of each token to end its request."""

    def run(self, step: Dispatched) -> tuple[list[str], list[list[int]]]:
        """Sample for the requests of a step; their names, and the tokens of each."""
        output, rng = step.output, self._rng
        for name in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self._computed.pop(name, None)
            self._lacking.pop(name, None)
        first: dict[str, int] = {}
        sampled: list[list[int]] = []
        invalid = output.num_invalid_spec_tokens or {}
        for name, tokens in output.num_scheduled_tokens.items():
            if name in step.starts:
                self._computed[name] = step.starts[name]
                self._lacking[name] = []
                if not step.disturbed:
                    self.incomplete.discard(name)
            first[name] = self._computed[name]
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            valid = drafts - invalid.get(name, 0)
            accepted = rng.randint(0, valid) if rng.random() < 0.7 else 0
            step.verified[name] = valid, accepted
            self._computed[name] += tokens - drafts + accepted
            number = accepted + 1 if name in step.samples else 0
            sampled.append([END if rng.random() < self.ends else rng.randint(1, 9) for _ in range(number)])
        if self._limits.kept_tokens and first:
            self._follow(step, first)
        if not any(sampled) and rng.random() < 0.5:
            sampled = []
        return list(first), sampled

    def drafts(self, step: Dispatched) -> tuple[list[str], list[list[int]]] | None:
        """Drafts after a step as it asks for them, and now and then shorter or none; None where it asks for none."""
        rng, longest = self._rng, step.output.num_spec_tokens_to_schedule
        if not longest or rng.random() < 0.05:
            return None
        names = list(step.output.num_scheduled_tokens)
        lengths = [longest if rng.random() < 0.8 else rng.randint(0, longest) for _ in names]
        return names, [[1] * length for length in lengths]

    def _follow(self, step: Dispatched, first: Mapping[str, int]) -> None:
        """Keep the drafter's input, and run the drafter, as ordered.

        Args:
            step: the step.
            first: position of each request's first token in it.
        """
        output, orders = step.output, orders_of(step.output)
        positions = {name: range(start, start + output.num_scheduled_tokens[name]) for name, start in first.items()}
        if orders is None:
            self._kept.clear()
            return
        while self._kept and self._kept[0][0] < orders.oldest:
            self._kept.popleft()
        for number, rows in self._kept:
            for name, valid in orders.resolved.get(number, {}).items():
                rows[name] = rows[name][:valid]
        total = sum(map(len, positions.values()))
        room = self._limits.max_batched_tokens - total - self._limits.drafter_slots * len(first)
        caught_up = sum(lag.tokens for lag in orders.catch_up.values())
        if caught_up > max(room, 0):
            self._note(f"{caught_up} tokens are to be caught up, and there is room for {room}")
        if orders.skip and (orders.catch_up or orders.keep or output.num_spec_tokens_to_schedule):
            self._note("a pass is skipped, and is needed")
        for name, lag in orders.catch_up.items():
            kept = [place for number, rows in self._kept if number >= lag.since for place in rows.get(name, ())]
            if kept != list(range(first[name] - lag.tokens, first[name])):
                self._note(f"{name} at {first[name]} is to catch up {lag.tokens} tokens; kept are {kept}")
            self._lacking[name] = []
        left = first.keys() if orders.skip else orders.keep
        for name in left:
            self._lacking[name] += positions[name]
        if left:
            self._kept.append((orders.step, {name: positions[name] for name in left}))
        for name, length in (step.lengths or {}).items():
            if length and self._lacking[name] and name not in self.incomplete:
                self._note(f"{name} drafts, and its drafter lacks {self._lacking[name]}")
        if sum(len(rows) for _, each in self._kept for rows in each.values()) > self._limits.kept_tokens + total:
            self._note("the worker keeps more than it may")
