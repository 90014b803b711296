"""A policy that plans anything, and sometimes what no policy may."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turbospec.interface import IntArray, Source, StepOutcome, StepPlan, StepView

FAILS = 0.01


class UnspeakableError(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("has no text")


class RandomTrim:
    """Leaves out any of the drafts, and sometimes does what no trim may."""

    def __init__(self, numbers: np.random.Generator) -> None:
        self._numbers = numbers

    def trim(self, drafts: IntArray, tokens_batched: int) -> IntArray:
        assert (drafts >= 0).all()
        assert 0 < drafts.sum() < tokens_batched
        if self._numbers.random() < FAILS:
            return drafts + 1
        return self._numbers.integers(0, drafts, endpoint=True)


class RandomPolicy:
    """Any lengths within the limits, padded or not, valid for one step or several, of any source."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers = np.random.default_rng(rng.getrandbits(32))

    def plan(self, view: StepView) -> StepPlan:
        rng = self._rng
        if rng.random() < FAILS:
            return self._fail(view)
        if rng.random() < 0.4:
            return StepPlan(np.zeros(view.size, np.int64), valid_steps=rng.choice((1, 2, 8, 100)))
        padded = rng.choice(view.graph_lengths) if view.graph_lengths and rng.random() < 0.5 else 0
        longest = padded or rng.randint(0, view.max_draft)
        limits, sources = view.draft_limits, None
        if view.lookup is not None and not padded:
            sources = np.where(self._numbers.random(view.size) < 0.5, Source.LOOKUP, Source.DRAFTER)
            limits = np.where(sources == Source.LOOKUP, view.lookup.lengths, limits)
        lengths = np.minimum(self._numbers.integers(0, longest, view.size, endpoint=True), limits)
        valid, probe = rng.choice((1, 1, 4)), rng.random() < 0.1
        trim = RandomTrim(self._numbers) if view.calls_trim and rng.random() < 0.7 else None
        return StepPlan(lengths, padded_length=padded, valid_steps=valid, probe=probe, sources=sources, trim=trim)

    def observe(self, outcome: StepOutcome) -> None:
        if self._rng.random() < FAILS / 2:
            raise UnspeakableError

    def _fail(self, view: StepView) -> StepPlan:
        if self._rng.random() < 0.5:
            raise self._rng.choice((RuntimeError("fails on purpose"), UnspeakableError()))
        wrong: Sequence[Callable[[], Any]] = (
            lambda: StepPlan(view.draft_limits + 1),
            lambda: StepPlan(np.zeros(view.size + 1, np.int64)),
            lambda: StepPlan(np.full(view.size, np.nan)),  # pyright: ignore[reportArgumentType]
            lambda: StepPlan(np.zeros(view.size, np.int64), padded_length=99),
            lambda: None,
        )
        return self._rng.choice(wrong)()
