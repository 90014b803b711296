"""State that is kept from a plan until its outcome arrives."""

from __future__ import annotations

from typing import Generic, TypeVar

State = TypeVar("State")


class PlansInFlight(Generic[State]):
    """One state per planned step. Bounded, because an engine that drops a step never reports its outcome."""

    CAPACITY = 64
    """Plans kept; the oldest is dropped first."""

    def __init__(self) -> None:
        self._by_step: dict[int, State] = {}
        self._last_put = 0

    def __len__(self) -> int:
        return len(self._by_step)

    def put(self, step: int, state: State) -> None:
        """Keep a step's state; a second plan for the same step replaces the first."""
        if step < self._last_put:
            for planned in [each for each in self._by_step if each - step >= self.CAPACITY]:
                del self._by_step[planned]  # planned before the engine counted from 0 again
        self._last_put = step
        self._by_step[step] = state
        if len(self._by_step) > self.CAPACITY:
            del self._by_step[next(iter(self._by_step))]

    def pop(self, step: int) -> State | None:
        """Remove and return a step's state; None where there is none or it was dropped."""
        return self._by_step.pop(step, None)

    def last(self, step: int) -> State | None:
        """The state of the last planned step up to this one, which may be a step that reused its plan.

        It is kept, and those of earlier steps are dropped: outcomes arrive in the order of their steps.
        """
        # Not in the order in which they were planned: an engine may plan a step again, or count from 0 again.
        last = step
        if step not in self._by_step:
            last = max((planned for planned in self._by_step if planned < step), default=step)
        for planned in tuple(self._by_step):
            if planned < last:
                del self._by_step[planned]
        return self._by_step.get(last)
