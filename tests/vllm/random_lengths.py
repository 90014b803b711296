"""Random draft lengths with a drafter that runs in every step, whose worker keeps hardly any input, or with graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from turbospec.hosts.vllm.scheduler.drafter_pass_cost import DrafterPassCost
from turbospec.hosts.vllm.scheduler.drafter_use import Allowance, DrafterUse
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.shared.step_times import CapturedGraphs
from turbospec_bench.vllm.selftest.random_lengths import (
    RandomAsyncScheduler,
    RandomLengths,
    RandomScheduler,
    shorten_at_random,
)

GRAPHS = (0, 1, 4)
"""Draft lengths; those of the tests go up to 6."""
__all__ = [
    "GRAPHS",
    "RandomAsyncScheduler",
    "RandomConstantScheduler",
    "RandomGraphsAsyncScheduler",
    "RandomGraphsScheduler",
    "RandomLengths",
    "RandomScheduler",
    "RandomSmallScheduler",
]


class RandomConstantScheduler(RandomScheduler):
    """Whose drafter runs in every step, as vLLM has it."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        loop = super()._build_loop(vllm_config)
        assert loop is not None
        loop = VllmLoop(loop.controller, replace(loop.limits, kept_tokens=0, late_drafts=False))
        shorten_at_random(loop)
        return loop


class RandomGraphsScheduler(RandomScheduler):
    """Whose drafter runs passes of `GRAPHS`, as if it had CUDA graphs for these."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        return _with_graphs(super()._build_loop(vllm_config))


class RandomGraphsAsyncScheduler(RandomAsyncScheduler):
    """The async one of these."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        return _with_graphs(super()._build_loop(vllm_config))


def _with_graphs(loop: VllmLoop | None) -> VllmLoop:
    assert loop is not None
    loop.learn_graphs(CapturedGraphs((), GRAPHS, 1024))
    loop.learn_graphs = lambda _: None  # the workers report none
    return loop


class RandomSmallScheduler(RandomScheduler):
    """Whose worker keeps hardly any input: the drafter must catch up in steps that draft nothing."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        loop = super()._build_loop(vllm_config)
        assert loop is not None
        loop = VllmLoop(loop.controller, replace(loop.limits, kept_tokens=6))
        loop._use = _AlwaysInUse(6, 6, DrafterPassCost(), asynchronous=False)
        shorten_at_random(loop)
        return loop


class _AlwaysInUse(DrafterUse):
    """Lets requests catch up in every third step, however long nothing is drafted."""

    @property
    def allowance(self) -> Allowance:
        return Allowance(in_use=True, tokens=1000, verified_may_lag=True)
