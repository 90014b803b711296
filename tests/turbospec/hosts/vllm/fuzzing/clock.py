"""A clock for a walk, so that it depends on its seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest.mock import patch

from turbospec import controller
from turbospec.hosts.vllm.scheduler import loop, views

STEPS = (0.0, 1e-6, 1e-3, 0.01, 0.05, 2.0)
JUMPS = (-1e7, -3600.0, 3600.0, 1e12)
"""Of the clock of the day, as its owner may set it."""


class Clock:
    """Stands in for the module `time`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now = self.began = 1000.0
        self._day = 1.7e9

    def advance(self) -> None:
        """Let some time go by, or none."""
        self._now += self._rng.choice(STEPS)

    def jump(self) -> None:
        """Set the clock of the day."""
        self._day += self._rng.choice(JUMPS)

    def perf_counter(self) -> float:
        return self._now

    monotonic = perf_counter

    def time(self) -> float:
        return self._day + self._now

    @contextmanager
    def instead_of_time(self, hosted: ModuleType) -> Iterator[None]:
        """In all modules that a step runs through; `hosted` is the one with TurboSpec's schedulers."""
        with ExitStack() as patches:
            for module in (controller, loop, views, hosted):
                patches.enter_context(patch.object(module, "time", self))
            yield
