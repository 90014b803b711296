"""A policy that raises, returns nonsense and changes what it was given."""

from __future__ import annotations

from typing import Any

import numpy as np

from turbospec.interface import StepOutcome, StepPlan, StepView


class Unprintable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


ERRORS: tuple[Exception, ...] = (
    ValueError("wrong"),
    Unprintable(),
    RecursionError(),
    MemoryError(),
    OSError(5, "\ud800 \x1b[31m\n" * 1000),
    AssertionError(),
    StopIteration(),
)
NUMBERS: tuple[Any, ...] = (7, -1, 10**30, 1.5, float("nan"), float("inf"), np.int8(3))
ANYTHING: tuple[Any, ...] = (None, *NUMBERS[:5], "text", "\ud800", b"", [], {}, object(), np.zeros(2), *NUMBERS[5:])


class HostilePolicy:
    """Behaves like `static` with K = 3, except in a share of its calls.

    Args:
        rng: decides.
        share: of calls that go wrong.
    """

    def __init__(self, rng: np.random.Generator, share: float) -> None:
        self.rng = rng
        self.share = share
        self._returned: list[np.ndarray] = []
        self._plan = StepPlan(np.zeros(0, np.int64))

    def plan(self, view: StepView) -> Any:
        rng = self.rng
        plan = StepPlan.same_length(view, 3, "hostile")
        if rng.random() > self.share:
            if self.share and rng.random() < 0.3:
                plan.valid_steps, plan.gate = 4, HostileGate(self) if rng.random() < 0.5 else None  # type: ignore[assignment]
            self._returned.append(plan.draft_lengths)
            return plan
        self._spoil(view)
        match rng.integers(8):
            case 0:
                raise ERRORS[rng.integers(len(ERRORS))]
            case 1:
                return ANYTHING[rng.integers(len(ANYTHING))]
            case 2:
                field = (
                    "predicted_tokens",
                    "predicted_seconds",
                    "reason",
                    "gate",
                    "padded_length",
                    "passes",
                    "probe",
                    "selection",
                    "trim",
                    "sources",
                    "append_limits",
                )
                setattr(plan, field[rng.integers(len(field))], ANYTHING[rng.integers(len(ANYTHING))])
            case 3:
                plan.valid_steps = [0, -1, 10**9, 10**30, None, "3", 2.5, 3, 1000][rng.integers(9)]  # type: ignore[assignment]
            case 4:
                plan.draft_lengths = ANYTHING[rng.integers(len(ANYTHING))]
            case 5:
                plan.draft_lengths = rng.integers(-3, 12, rng.integers(0, 5 + view.size)).astype(
                    rng.choice([np.int8, np.int32, np.int64, np.uint64, np.float64])
                )
            case 6:
                hostile: Any = HostileGate(self)
                plan.gate, plan.selection, plan.trim = (
                    (hostile, hostile, None) if rng.random() < 0.5 else (None, None, hostile)
                )
                plan.valid_steps = 4
            case _:
                self._plan.draft_lengths = plan.draft_lengths
                self._plan.gate = self._plan.gate or HostileGate(self)  # type: ignore[assignment]
                return self._plan  # the same object again and again
        if isinstance(plan.draft_lengths, np.ndarray):
            self._returned.append(plan.draft_lengths)
        return plan

    def observe(self, outcome: StepOutcome) -> Any:
        if self.rng.random() < self.share:
            for array in self._returned:
                array.fill(99)
            if self.rng.random() < 0.3:
                raise ERRORS[self.rng.integers(len(ERRORS))]
        del self._returned[:-3]
        return ANYTHING[self.rng.integers(len(ANYTHING))]

    def _spoil(self, view: StepView) -> None:
        if self.rng.random() < 0.3 and view.draft_limits.flags.writeable:
            view.draft_limits[:] = self.rng.choice(np.array([-5, 0, 99]))
            if self.rng.random() < 0.1:
                view.draft_limits.setflags(write=False)
        if self.rng.random() < 0.05:
            view.phase[:] = 7


class HostileGate:
    """A gate, a selection and a trim, whose answers are nonsense."""

    def __init__(self, policy: HostilePolicy) -> None:
        self._policy = policy

    def advance(self, rows: np.ndarray, confidence: np.ndarray) -> Any:
        rng = self._policy.rng
        rows[:], confidence[:] = 10**6, -1.0
        match rng.integers(5):
            case 0:
                raise ERRORS[rng.integers(len(ERRORS))]
            case 1:
                return ANYTHING[rng.integers(len(ANYTHING))]
            case 2:
                return (ANYTHING[rng.integers(len(ANYTHING))],) * 2
            case 3:
                return np.ones(len(rows)), np.ones(len(rows), np.int64)
            case _:
                return np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)

    def trim(self, drafts: np.ndarray, tokens_batched: int) -> Any:
        return self.select(drafts, np.zeros(0))

    def select(self, proposed: np.ndarray, confidence: np.ndarray) -> Any:
        rng = self._policy.rng
        match rng.integers(4):
            case 0:
                raise ERRORS[rng.integers(len(ERRORS))]
            case 1:
                return ANYTHING[rng.integers(len(ANYTHING))]
            case 2:
                proposed[:] = 99
                return proposed
            case _:
                return rng.integers(-2, 5, len(proposed))
