"""Schedulers whose controller picks every request's source and draft length at random, every step.

Nearly all drafts of the drafter count as experiments, so that it is in use in some steps and out of use in others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec.hosts.vllm.scheduler.drafter_pass_cost import DrafterPassCost
from turbospec.hosts.vllm.scheduler.drafter_use import DrafterUse
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.schedulers import TurboSpecAsyncScheduler, TurboSpecScheduler
from turbospec.interface import Source, StepOutcome, StepPlan, StepView
from turbospec_bench.vllm.selftest.random_lengths import shorten_at_random

IN_USE_TOKENS = 20
"""Tokens without drafts of the drafter, experiments not counted, after which it is out of use: a step or two."""


class RandomSources:
    """Drafts of the look-up where it finds something, for two requests in three, and none at all in some steps."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def plan(self, view: StepView) -> StepPlan:
        assert view.lookup is not None
        rng = self._rng
        copied = (view.lookup.lengths > 0) & (rng.random(view.size) < 2 / 3)
        limits = np.where(copied, view.lookup.lengths, view.draft_limits if rng.random() < 2 / 3 else 0)
        lengths = rng.integers(0, limits, endpoint=True) if rng.random() < 0.9 else np.zeros_like(limits)
        sources = np.where(copied, Source.LOOKUP, Source.DRAFTER)
        return StepPlan(lengths, sources=sources, probe=bool(rng.random() < 0.9))

    def observe(self, outcome: StepOutcome) -> None:
        assert outcome.sources is not None
        assert (outcome.accepted <= outcome.drafted).all()
        assert (outcome.accepted <= outcome.emitted).all()


class RandomSourcesScheduler(TurboSpecScheduler):
    """The sync scheduler."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        return _at_random(super()._build_loop(vllm_config))


class RandomSourcesAsyncScheduler(TurboSpecAsyncScheduler):
    """The async scheduler."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        return _at_random(super()._build_loop(vllm_config))


def _at_random(loop: VllmLoop | None) -> VllmLoop:
    assert loop is not None
    loop.controller = RandomSources()
    shorten_at_random(loop)
    loop._use = _StopsSoon(IN_USE_TOKENS, 1, DrafterPassCost(), asynchronous=loop.limits.async_scheduling)
    return loop


class _StopsSoon(DrafterUse):
    """Lets requests lag by what is verified in the third step after the last draft of the drafter."""

    def drafted(self, *, experiment: bool) -> None:
        super().drafted(experiment=experiment)
        self._keep_up_steps = min(self._keep_up_steps, 2)
