"""Schedulers whose controller picks every request's draft length at random, every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.schedulers import TurboSpecAsyncScheduler, TurboSpecScheduler
from turbospec.interface import StepOutcome, StepPlan, StepView


class RandomLengths:
    """
    Args:
        idle: share of the steps that draft nothing at all; others may too, by chance.
    """

    def __init__(self, *, idle: float = 1 / 3) -> None:
        self._rng = np.random.default_rng(0)
        self._idle = idle

    def plan(self, view: StepView) -> StepPlan:
        """Draw a longest draft for the step, and up to it one for each request."""
        longest = self._rng.integers(0, view.max_draft, endpoint=True) if self._rng.random() < 1 - self._idle else 0
        lengths = np.minimum(self._rng.integers(0, longest, view.size, endpoint=True), view.draft_limits)
        longest = int(lengths.max(initial=0))
        graphs = [each for each in view.drafter_graph_lengths if each >= longest > 1]
        return StepPlan(lengths, passes=min(graphs, default=0))

    def observe(self, outcome: StepOutcome) -> None:
        """Check the outcome."""
        assert (outcome.accepted <= outcome.drafted).all()
        assert (outcome.accepted <= outcome.emitted).all()


class RandomScheduler(TurboSpecScheduler):
    """The sync scheduler."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        return _at_random(super()._build_loop(vllm_config))


class RandomAsyncScheduler(TurboSpecAsyncScheduler):
    """The async scheduler."""

    def _build_loop(self, vllm_config: Any) -> VllmLoop | None:
        return _at_random(super()._build_loop(vllm_config))


def shorten_at_random(loop: VllmLoop) -> None:
    """Have a loop shorten one draft in six when the step that verifies it is scheduled, with prompts or without."""
    rng = np.random.default_rng(1)

    def trim(num_scheduled: Mapping[str, int], drafts: Mapping[str, Sequence[int]]) -> dict[str, int]:
        return {name: int(rng.integers(0, len(draft))) for name, draft in drafts.items() if rng.random() < 1 / 6}

    if loop.limits.calls_trim:
        loop.trim = trim


def _at_random(loop: VllmLoop | None) -> VllmLoop:
    assert loop is not None
    loop.controller = RandomLengths()
    shorten_at_random(loop)
    return loop
