"""Views and outcomes with one field broken, and with the contract's values in other types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from turbospec.interface import MAX_COUNT, MAX_DRAFT_LENGTH, LookupView, StepOutcome, StepView

Struct = TypeVar("Struct", StepView, StepOutcome)

ARRAYS = {"IntArray", "BoolArray", "FloatArray | None"}
NOT_STRUCTS: tuple[Any, ...] = (None, 5, "step", object(), {"step": 1}, np.zeros(3), [])
NOT_INTEGERS: tuple[Any, ...] = (
    None,
    1.5,
    float("nan"),
    "7",
    b"7",
    [],
    {},
    object(),
    np.array([1, 2]),
    10**19,
    -1,
    -(2**63),
    1j,
)
NOT_SECONDS: tuple[Any, ...] = (
    None,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    "1",
    10**400,
    1j,
    [],
    np.zeros(2),
)
NOT_FLAGS: tuple[Any, ...] = (None, 1, "yes", np.array([True, False]), [], 0.0)
NOT_LENGTHS: tuple[Any, ...] = (None, (1.5,), (-1,), (10**9,), "12", ((0,),), (None,), range(3), 7, tuple([1] * 10_000))
ANY_INTEGER = {"tokens_left", "class_ids"}
"""Arrays whose values are not bounded."""


def broken(struct: Struct, rng: np.random.Generator) -> Any:
    """A copy that breaks the contract in one field, or another object altogether."""
    while True:
        if rng.random() < 0.03:
            return rng.choice(np.array(NOT_STRUCTS, dtype=object))
        if rng.random() < 0.3:
            changed = _inconsistent(struct, rng)
        else:
            field = fields(struct)[rng.integers(len(fields(struct)))]
            change = CHANGES[str(field.type)](field.name, getattr(struct, field.name), rng)
            changed = None if change is None else replace(struct, **{field.name: change[0]})
        if changed is not None:
            return changed


def in_other_types(struct: Struct, rng: np.random.Generator) -> Struct:
    """The same values in other types, which the contract allows to be converted."""
    changes: dict[str, Any] = {}
    for field in fields(struct):
        value, kind = getattr(struct, field.name), str(field.type)
        if rng.random() < 0.5 or value is None:
            continue
        if kind in ("IntArray", "IntArray | None"):
            fits = not value.size or (value.min() >= -(2**31) and value.max() < 2**31)
            changes[field.name] = [
                value.astype(np.int32) if fits else value,
                np.repeat(value, 2)[::2],
                _read_only(value),
                value.astype(">i8"),
            ][rng.integers(4)]
        elif kind == "BoolArray":
            changes[field.name] = _read_only(value)
        elif kind == "FloatArray | None":
            changes[field.name] = [value.astype(np.float32), np.asfortranarray(value), _read_only(value)][
                rng.integers(3)
            ]
        elif kind == "LookupView | None":
            changes[field.name] = LookupView(
                value.lengths.astype(np.int32), value.scores.astype(np.float32), value.appends
            )
        elif kind == "int":
            changes[field.name] = np.int64(value)
        elif kind == "float":
            changes[field.name] = np.float64(value)
        elif kind == "bool":
            changes[field.name] = np.bool_(value)
        else:
            changes[field.name] = list(value)
    return replace(struct, **changes)


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def _one_of(values: tuple[Any, ...]) -> Callable[[str, Any, np.random.Generator], tuple[Any] | None]:
    return lambda name, value, rng: (values[rng.integers(len(values))],)


def _seconds(name: str, value: Any, rng: np.random.Generator) -> tuple[Any] | None:
    if name != "now" and rng.random() < 0.2:
        return (-1e-3,)
    return (NOT_SECONDS[rng.integers(len(NOT_SECONDS))],)


def _array(name: str, value: Any, rng: np.random.Generator) -> tuple[Any] | None:
    """An array of another shape or type, or with one value out of range."""
    if value is None:
        return (np.zeros(2),)
    match rng.integers(10):
        case 0:
            return (None,) if name not in ("confidence", "sources", "appended") else (np.zeros(3),)
        case 1:
            return (value.tolist(),)
        case 2:
            return (np.array(3),)
        case 3:
            return (np.stack([value, value]),)
        case 4:
            return (value.astype(np.float64),) if value.dtype.kind != "f" else (np.zeros(value.shape, np.int64),)
        case 5:
            return (value.astype(object),)
        case 6:
            return (value.astype(str),)
        case 7:
            return (np.concatenate([value, value[:1]]),) if len(value) and name != "draft_rows" else None
        case 8:
            return (value[:-1],) if len(value) and name != "draft_rows" else None
        case _:
            if value.dtype.kind != "i" or not len(value) or name in ANY_INTEGER:
                return None
            changed = value.copy()
            row = rng.integers(len(value))
            if name == "request_ids":
                if len(value) < 2:
                    return None
                changed[row] = changed[row - 1]
            else:
                changed[row] = rng.choice(np.array([-1, MAX_COUNT + 1, 2**62, 2**63 - 1, -(2**63)]))
            return (changed,)


def _lookup(name: str, value: Any, rng: np.random.Generator) -> tuple[Any] | None:
    """No look-up, or one with a row too many, a length or a score out of range, or an array of another type."""
    if value is None or not len(value.lengths):
        return (np.zeros(2),)
    row, lengths, scores = rng.integers(len(value.lengths)), value.lengths.copy(), value.scores.copy()
    match rng.integers(5):
        case 0:
            return (LookupView(np.r_[lengths, 0], np.r_[scores, 0.0]),)
        case 1:
            lengths[row] = rng.choice(np.array([-1, MAX_DRAFT_LENGTH + 1, 2**62]))
        case 2:
            scores[row] = rng.choice(np.array([-1.0, np.nan, np.inf, 1e308]))
        case 3:
            return (LookupView(lengths.astype(float), scores),)  # type: ignore[arg-type]
        case _:
            return (LookupView(None, scores),)  # type: ignore[arg-type]
    return (LookupView(lengths, scores),)


CHANGES: dict[str, Callable[[str, Any, np.random.Generator], tuple[Any] | None]] = {
    "int": _one_of(NOT_INTEGERS),
    "float": _seconds,
    "bool": _one_of(NOT_FLAGS),
    "tuple[int, ...]": _one_of(NOT_LENGTHS),
    "IntArray": _array,
    "IntArray | None": _array,
    "LookupView | None": _lookup,
    "BoolArray": _array,
    "FloatArray | None": _array,
}
"""By annotation: a value that the field must not have, in a tuple; None where this field has no such change."""


def _inconsistent(struct: Any, rng: np.random.Generator) -> Any:
    """Fields that are valid alone and not together; None where this struct has no row to change."""
    if isinstance(struct, StepView):
        n = struct.size
        changes: list[dict[str, Any]] = [
            {"max_draft": MAX_DRAFT_LENGTH + 1},
            {"draft_limits": struct.draft_limits + struct.max_draft + 1},
            {"phase": np.zeros(n, np.int64), "draft_limits": np.ones(n, np.int64), "max_draft": 5},
            {"request_ids": np.zeros(n, np.int64)},
        ]
        index = int(rng.integers(len(changes)))
        return replace(struct, **changes[index]) if n > 1 or index == 0 else None
    n = len(struct.request_ids)
    changes = [
        {"step_seconds": 1e-12},
        {"step_seconds": 1e308},
        {"reused_plan_steps": 0, "reused_plan_seconds": 1.0},
        {"reused_plan_steps": 0, "reused_plan_tokens": 1},
        {"reused_plan_steps": 0, "reused_plan_prefill_tokens": 1},
        {"reused_plan_steps": 3, "reused_plan_seconds": 0.0},
        {"draft_rows": np.ones(1000, np.int64)},
        {"accepted": struct.drafted + 1},
        {"drafted": struct.proposed + 1, "accepted": struct.accepted},
        {"proposed": struct.proposed + MAX_DRAFT_LENGTH + 1},
        {"emitted": struct.emitted + MAX_DRAFT_LENGTH + 2},
        {"request_ids": struct.request_ids + 1},
        {"confidence": np.full((n, 0), 0.5), "proposed": np.maximum(struct.proposed, 1)},
        {"confidence": np.full((n + 1, MAX_DRAFT_LENGTH), 0.5)},
    ]
    if struct.confidence is not None and struct.proposed.any():
        confidence = struct.confidence.copy()
        confidence[struct.proposed.argmax(), 0] = rng.choice(np.array([np.nan, np.inf, -0.5, 1.5, 1e308]))
        changes.append({"confidence": confidence})
    index = int(rng.integers(len(changes)))
    return replace(struct, **changes[index]) if n or index < 6 else None
