"""Schedulers whose controller picks every request's source and draft length at random, every step."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.schedulers import TurboSpecAsyncScheduler, TurboSpecScheduler
from turbospec.interface import Source, StepOutcome, StepPlan, StepView


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
        return StepPlan(lengths, sources=np.where(copied, Source.LOOKUP, Source.DRAFTER))

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
    return loop
