"""Guards around a policy's gate, selection and trim: a host gets an answer that it can use, and no exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import index
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from turbospec.interface import MAX_COUNT, BoolArray, DraftGate, DraftSelection, DraftTrim, FloatArray, IntArray
from turbospec.runtime.contract_types import HostFault, converted, floats, integers, table
from turbospec.runtime.kernels import compile_for, compiled
from turbospec.runtime.outcome_check import MAX_CONFIDENCE, is_confidence, within

Part = TypeVar("Part", DraftGate, DraftSelection, DraftTrim)
OnFault = Callable[[str, Exception], None]
"""Called with where a fault occurred, and the exception; a `HostFault` where it is the host's."""


class Guarded(Generic[Part]):
    """Wraps a part of a plan that a host calls.

    Args:
        part: of a policy.
        size: rows of the plan.
        on_fault: is told of every fault.
    """

    def __init__(self, part: Part, size: int, on_fault: OnFault) -> None:
        self._part = part
        self._size = size
        self._on_fault = on_fault
        self.seconds = 0.0
        """Time spent in the part, which counts as decision time."""


class GuardedGate(Guarded[DraftGate]):
    """A gate that fails ends all drafts."""

    def advance(self, rows: IntArray, confidence: FloatArray) -> tuple[BoolArray, BoolArray]:
        began = time.perf_counter()
        try:
            try:
                valid = _is_pass(rows, confidence, self._size)
            except Exception:  # other types than the contract's
                rows, confidence = converted("rows", rows, integers), converted("confidence", confidence, floats)
                valid = _is_pass(rows, confidence, self._size)
            if not valid:
                raise HostFault("rows are not the plan's, or confidence is not between 0 and 1 for each of them")
            keep, more = self._part.advance(rows.copy(), confidence.copy())  # the host relies on its own
            for answer in (keep, more):
                if answer.shape != rows.shape or answer.dtype != np.bool_:
                    raise ValueError(f"returned {answer.dtype} of shape {answer.shape}, not bool of {rows.shape}")
        except Exception as error:
            self._on_fault("gate", error)
            size = _length(rows)
            keep, more = np.ones(size, np.bool_), np.zeros(size, np.bool_)
        self.seconds += time.perf_counter() - began
        return keep, more


class GuardedSelection(Guarded[DraftSelection]):
    """A selection that fails verifies whole drafts."""

    def select(self, proposed: IntArray, confidence: FloatArray) -> IntArray:
        began = time.perf_counter()
        try:
            own_proposed = converted("proposed", proposed, integers)
            own_confidence = converted("confidence", confidence, table)
            if len(own_proposed) != self._size or not is_confidence(own_confidence, own_proposed):
                raise HostFault("proposed has not the plan's rows, or confidence is not between 0 and 1 for each token")
            # The selection gets a copy: it is checked against lengths that it cannot change.
            kept = _checked_lengths(self._part.select(own_proposed.copy(), own_confidence), own_proposed)
        except Exception as error:
            self._on_fault("selection", error)
            kept = proposed
        self.seconds += time.perf_counter() - began
        return kept


class GuardedTrim(Guarded[DraftTrim]):
    """A trim that fails verifies whole drafts."""

    def trim(self, drafts: IntArray, tokens_batched: int) -> IntArray:
        began = time.perf_counter()
        try:
            own = converted("drafts", drafts, integers)
            tokens = converted("tokens_batched", tokens_batched, index)
            if len(own) != self._size or (own < 0).any() or not own.sum() <= tokens <= MAX_COUNT:
                raise HostFault("drafts has not the plan's rows, is negative, or is more than tokens_batched")
            kept = _checked_lengths(self._part.trim(own.copy(), tokens), own)
        except Exception as error:
            self._on_fault("trim", error)
            kept = drafts
        self.seconds += time.perf_counter() - began
        return kept


def _checked_lengths(kept: IntArray, lengths: IntArray) -> IntArray:
    """A copy of a policy's answer, which is to shorten (n,) draft lengths."""
    if kept.shape != lengths.shape or kept.dtype.kind not in "iu":
        raise ValueError(f"returned {kept.dtype} of shape {kept.shape}, not integers of {lengths.shape}")
    kept = np.array(kept, np.int64)
    if not within(kept, lengths):
        raise ValueError("must return 0 to as many tokens as each draft has")
    return kept


def compile_check() -> None:
    """Compile the checks, or load them from the cache, so that the first draft does not wait for them."""
    one = np.zeros(1, np.int64)
    compile_for(_is_pass, one, np.zeros(1), 1)
    compile_for(is_confidence, np.zeros((1, 1)), one)


def _length(rows: object) -> int:
    """Rows of a drafter pass; 0 for what is no array of them."""
    return len(cast("NDArray[Any]", rows)) if isinstance(rows, np.ndarray) and rows.ndim else 0


@compiled
def _is_pass(rows: IntArray, confidence: FloatArray, size: int) -> bool:
    if len(rows) != len(confidence):
        return False
    outside = False
    for i in range(len(rows)):
        outside |= (rows[i] < 0) | (rows[i] >= size)
        outside |= not ((confidence[i] >= 0.0) & (confidence[i] <= MAX_CONFIDENCE))
    return not outside
