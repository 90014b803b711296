"""Processor time that TurboSpec takes in vLLM's scheduler, without vLLM: `python -m turbospec_bench.vllm.loop_cost`.

The loop, the controller and its metrics are the real ones. Requests, the clock and the outputs are made up: steps last
as on a GPU. With 256 requests a request ends and a new one starts in most of them, with 8 in one of ten. Between two
calls a server runs a step, which empties the processor's caches: the cold figures are those to expect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from turbospec.controller import Controller
from turbospec.hosts.vllm.scheduler import loop as loop_module
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.outputs import accepted, verified
from turbospec.hosts.vllm.scheduler.steps import AcceptedFn, VerifyResultFn
from turbospec.hosts.vllm.scheduler.views import EngineLimits, Queue
from turbospec.hosts.vllm.shared.step_times import CapturedGraphs
from turbospec.interface import FloatArray
from turbospec.observability.metrics import StepMetrics
from turbospec.policy import load_policy
from turbospec_bench.cold_caches import empty_caches

MAX_DRAFT = 8
STEP_SECONDS, TOKEN_SECONDS, PASS_SECONDS = 12e-3, 3e-5, 8e-4
WARM_UP_STEPS = 100
ACCEPTANCE = {"good": (0.5, 0.9), "bad": (0.0, 0.1)}
"""Range of the requests' acceptance rates."""


@dataclass
class Request:
    """As vLLM's."""

    request_id: str
    max_tokens: int
    acceptance: float
    num_prompt_tokens: int = 100
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    sampling_params: Any = None
    use_structured_output: bool = False
    tokens: list[int] = field(default_factory=lambda: [0] * 100)
    draft: int = 0
    """Draft tokens that the next step verifies."""

    @property
    def all_token_ids(self) -> list[int]:
        return self.tokens

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def sample(self, rng: np.random.Generator) -> int:
        """Verify the draft; returns how many tokens the request gets, at most those that are left."""
        left = max(self.max_tokens - (self.num_tokens - self.num_prompt_tokens), 1)
        kept = min(int(rng.geometric(1.0 - self.acceptance)) - 1, self.draft, left - 1)
        self.tokens += [0] * (kept + 1)
        self.num_computed_tokens = self.num_tokens - 1
        return kept + 1


def verification(
    scheduled: Mapping[str, int], drafts: Mapping[str, list[int]], sampled: Sequence[int]
) -> tuple[VerifyResultFn, AcceptedFn]:
    """What `VllmLoop.finish` asks for, of a step that sampled so many tokens for each of its requests."""
    step: Any = SimpleNamespace(
        num_scheduled_tokens=scheduled, scheduled_spec_decode_tokens=drafts, num_invalid_spec_tokens=None
    )
    sent = [
        SimpleNamespace(request_id=name, new_token_ids=[0] * tokens)
        for name, tokens in zip(scheduled, sampled, strict=True)
    ]
    outputs: dict[int, Any] = {0: SimpleNamespace(outputs=sent)}
    rows = {name: row for row, name in enumerate(scheduled)}
    return partial(verified, step, rows, sampled, outputs), partial(accepted, rows, sampled)


class Server:
    """Steps of a full batch.

    Args:
        requests: in the batch.
        acceptance: range of the requests' acceptance rates.
        ahead: whether steps are planned while the step before runs, as under vLLM's sync scheduler.
        cold: whether the processor's caches are emptied before a step is scheduled and before it is finished.
    """

    def __init__(self, requests: int, acceptance: tuple[float, float], *, ahead: bool, cold: bool = False) -> None:
        self._rng = np.random.default_rng(0)
        self._acceptance = acceptance
        self._ahead, self._cold = ahead, cold
        limits = EngineLimits(
            max_draft=MAX_DRAFT,
            max_model_len=8192,
            reserved_length=0,
            max_batched_tokens=8192,
            parallel_drafter=False,
            kept_tokens=8192,
            tokens_first=True,
        )
        controller = Controller(load_policy("adaptive"))
        controller.listeners.append(StepMetrics(controller.stats))
        self._loop = VllmLoop(controller, limits)
        self._loop.learn_graphs(CapturedGraphs(tuple((length, requests) for length in (0, 1, 2, 3, 5, 8))))
        self._numbered = 0
        self.now = 0.0
        self._passes = 0
        """Drafter passes of the last step, which run after its tokens were sent."""
        self._running = [self._new() for _ in range(requests)]

    def step(self) -> tuple[float, float, bool]:
        """Thread seconds between two steps and beside a running one, and whether the step drafts."""
        loop, running = self._loop, self._running
        scheduled = {each.request_id: each.num_tokens + each.draft - each.num_computed_tokens for each in running}
        drafts = {each.request_id: [0] * each.draft for each in running if each.draft}
        if self._cold:
            empty_caches()
        began = time.thread_time()
        reused, _ = loop.reuse_plan(scheduled, 0.0)
        lengths = np.zeros(len(running), np.int64)
        if not reused:
            lengths, *_ = loop.plan(running, scheduled, (), Queue(), 0.0)
        planned = time.thread_time()
        longest = int(lengths.max())
        self.now += STEP_SECONDS + TOKEN_SECONDS * sum(scheduled.values()) + PASS_SECONDS * self._passes
        self._passes = longest
        for each in running:
            each.num_computed_tokens += scheduled[each.request_id]
        beside = self._timed(lambda: self._plan_ahead(running)) if self._ahead else 0.0
        asked = verification(scheduled, drafts, [each.sample(self._rng) for each in running])
        number = loop.newest
        if self._cold:
            empty_caches()
        finishing = self._timed(lambda: loop.finish(number, *asked))
        between = planned - began + finishing
        if not self._ahead:
            beside, between = between + self._timed(lambda: loop.settle(Queue())), 0.0
        ended = [each for each in running if each.num_tokens - each.num_prompt_tokens >= each.max_tokens]
        for each, length in zip(running, lengths.tolist(), strict=True):
            each.draft = length
        loop.known.forget(each.request_id for each in ended)
        self._running = [self._new() if each in ended else each for each in running]
        return between, beside, longest > 0

    def _plan_ahead(self, running: list[Request]) -> None:
        self._loop.settle(Queue())
        self._loop.plan_ahead(running, Queue())

    def _new(self) -> Request:
        self._numbered += 1
        max_tokens, acceptance = int(self._rng.integers(50, 400)), float(self._rng.uniform(*self._acceptance))
        return Request(f"cmpl-{self._numbered:032x}-0", max_tokens, acceptance)

    @staticmethod
    def _timed(work: Callable[[], object]) -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began


def measure(
    requests: int, acceptance: str, *, ahead: bool, cold: bool = False, steps: int = 200
) -> tuple[FloatArray, float]:
    """(steps, 2) thread seconds between two steps and beside a running one, and the share of steps that draft."""
    server = Server(requests, ACCEPTANCE[acceptance], ahead=ahead, cold=cold)
    loop_module.time = SimpleNamespace(perf_counter=lambda: server.now)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        rows = np.array([server.step() for _ in range(WARM_UP_STEPS + steps)])[WARM_UP_STEPS:]
    finally:
        loop_module.time = time
    return rows[:, :2], float(rows[:, 2].mean())


def main() -> None:
    """Print a line for each way to plan and each drafter: ahead, as under vLLM's sync scheduler, or when the step is
    scheduled, as under the async one."""
    print("                                                            between steps, ms    beside a step, ms")
    print("requests  planned         drafter  caches  steps that draft  median      (P90)    median     (P90)")
    for requests, ahead, acceptance, cold in product((8, 64, 256, 1024), (True, False), ACCEPTANCE, (False, True)):
        seconds, drafting = measure(requests, acceptance, ahead=ahead, cold=cold)
        (between, beside), (between_p90, beside_p90) = np.percentile(seconds * 1e3, [50, 90], axis=0)
        kind, caches = "ahead" if ahead else "when scheduled", "cold" if cold else "warm"
        print(
            f"{requests:8}  {kind:14}  {acceptance:7}  {caches:6}  {drafting:16.2f}"
            f"  {between:6.3f}    ({between_p90:.3f})    {beside:6.3f}   ({beside_p90:.3f})"
        )


if __name__ == "__main__":
    main()
