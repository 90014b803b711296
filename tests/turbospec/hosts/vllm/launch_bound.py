"""vLLM with one worker on a GPU, where the host may need longer to launch a step than the GPU to run it.

In the order of vLLM's `step_with_batch_queue`: the whole next step is launched before a step's output is read.
Requests, clocks and outputs are made up; the loop and the controller are the real ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from turbospec.controller import Controller
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.views import EngineLimits, Queue
from turbospec.hosts.vllm.shared.step_times import CapturedGraphs, StepTimes
from turbospec.policy import load_policy
from turbospec_bench.vllm.loop_cost import Request, verification

LAUNCH, TARGET, TOKEN, PREFILL = 1e-3, 3.5e-3, 1e-5, 4e-3
"""Seconds: to launch the target's pass; on the GPU, of the pass, a token, and prompts in it."""
ACCEPTANCE = 0.55
"""Of each draft token."""
TOKENS = 64
"""Mean output of a request."""
GRAPHS = (0, 1, 2, 3, 5, 8, 15)
"""Draft lengths that have them."""
LIMITS = EngineLimits(
    max_draft=15,
    max_model_len=8192,
    reserved_length=0,
    max_batched_tokens=8192,
    parallel_drafter=False,
    kept_tokens=65536,
    tokens_first=True,
    async_scheduling=True,
)


@dataclass
class Launched:
    """A step whose output is not read yet."""

    number: int
    scheduled: dict[str, int]
    drafts: dict[str, list[int]]
    sampled: list[int]
    times: StepTimes
    ready: float
    """When its tokens are on the host."""


class LaunchBoundServer:
    """A full batch: a request that ends is followed by another.

    Args:
        requests: in the batch.
        policy: name of a ready policy.
        launch: seconds that the host takes to launch a drafter pass without a CUDA graph.
        gpu: seconds that the pass takes on the GPU.
        acceptance: of each draft token.
        graphs: whether the passes after the first replay one CUDA graph, for the lengths of `GRAPHS`.
        seed: of lengths and acceptance.
    """

    def __init__(
        self,
        requests: int,
        policy: str,
        *,
        launch: float,
        gpu: float,
        acceptance: float = ACCEPTANCE,
        graphs: bool = False,
        seed: int = 0,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._pass, self._acceptance = (launch, gpu), acceptance
        target = tuple((length, 512) for length in GRAPHS)
        self._graphs = CapturedGraphs(target, GRAPHS, 512) if graphs else CapturedGraphs(target)
        self._loop = VllmLoop(Controller(load_policy(policy)), LIMITS)
        self._launched = deque[Launched]()
        self._names = 0
        self._gpu = 0.0
        """When the GPU has run all that was launched."""
        self._drafting = 0.0
        self.now = 0.0
        self.emitted = 0
        self._batch = [self._new() for _ in range(requests)]

    def run(self, steps: int) -> float:
        """Tokens/s of the next steps."""
        began, before = self.now, self.emitted
        for _ in range(steps):
            self._launch()
            if len(self._launched) == 2:
                self._finish(self._launched.popleft())
        return (self.emitted - before) / (self.now - began)

    def _new(self) -> Request:
        self._names += 1
        return Request(str(self._names), int(TOKENS * self._rng.uniform(0.75, 1.25)), self._acceptance)

    def _launch(self) -> None:
        batch = self._batch
        scheduled = {each.request_id: each.num_tokens + each.draft - each.num_computed_tokens for each in batch}
        drafts = {each.request_id: [0] * each.draft for each in batch if each.draft}
        reused, orders = self._loop.reuse_plan(scheduled, 0.0)
        lengths, passes = np.zeros(len(batch), np.int64), 0
        if not reused:
            lengths, passes, _, orders = self._loop.plan(batch, scheduled, (), Queue(), 0.0)
        has_prompts = any(each.num_computed_tokens == 0 for each in batch)
        self.now += LAUNCH
        sampled_at = max(self.now, self._gpu) + TARGET + TOKEN * sum(scheduled.values()) + PREFILL * has_prompts
        times = StepTimes(self._drafting, 0.0, sampled_at - self._gpu, self._graphs)
        self._gpu, (launch, gpu) = sampled_at, self._pass
        assert orders is not None
        passes = 0 if orders.skip else max(passes, 1)
        in_graph = passes in self._graphs.drafter
        for each in range(passes):
            if each == 0 or not in_graph:
                self.now += launch
            elif each == 1:
                self.now += LAUNCH
            self._gpu = max(self._gpu, self.now) + gpu
        self._drafting = self._gpu - sampled_at
        counts = [each.sample(self._rng) for each in batch]
        self.emitted += sum(counts)
        self._launched.append(Launched(self._loop.newest, scheduled, drafts, counts, times, sampled_at + 1e-4))
        for each, length in zip(batch, lengths.tolist(), strict=True):
            each.draft = length
        ended = [each for each in batch if each.num_tokens - each.num_prompt_tokens >= each.max_tokens]
        self._batch = [self._new() if each in ended else each for each in batch]

    def _finish(self, done: Launched) -> None:
        self.now = max(self.now, done.ready)
        self._loop.finish(done.number, *verification(done.scheduled, done.drafts, done.sampled), done.times)
        self._loop.settle(Queue())
        running = {each.request_id for each in self._batch}
        in_flight = {name for each in self._launched for name in each.scheduled}
        self._loop.known.forget(self._loop.known.names - running - in_flight)
