"""What is remembered of a plan until its outcome is reported."""

from __future__ import annotations

from typing import Generic, TypeVar

Memory = TypeVar("Memory")


class OpenPlans(Generic[Memory]):
    """A memory for each planned step; bounded, because an engine that drops a step never reports it."""

    CAPACITY = 64

    def __init__(self) -> None:
        self._by_step: dict[int, Memory] = {}

    def __len__(self) -> int:
        return len(self._by_step)

    def put(self, step: int, memory: Memory) -> None:
        self._by_step[step] = memory
        if len(self._by_step) > self.CAPACITY:
            del self._by_step[next(iter(self._by_step))]

    def pop(self, step: int) -> Memory | None:
        """What was put for this step; None where nothing was, or it was too long ago."""
        return self._by_step.pop(step, None)
