"""Converts a host's values to the types of the contract, for hosts that use others: int32, float32, numpy scalars.

The slow way of `turbospec.runtime.view_check` and `outcome_check`. It also says which field has the wrong type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from turbospec.interface import (
    MAX_DRAFT_LENGTH,
    MAX_REQUESTS,
    BoolArray,
    FloatArray,
    IntArray,
    LookupView,
    StepOutcome,
    StepView,
)

Struct = TypeVar("Struct", StepView, LookupView, StepOutcome)
Value = TypeVar("Value")


class HostFault(Exception):
    """A host passed something that breaks the contract. The message names the field and the rule."""


def with_contract_types(struct: object, kind: type[Struct]) -> Struct:
    """A view or an outcome with the values of another struct. Its arrays are copies.

    Args:
        struct: has the attributes of `kind`.
        kind: `StepView`, `LookupView` or `StepOutcome`.

    Raises:
        HostFault: a field is missing, or has a type that does not hold such values.
    """
    values: dict[str, Any] = {}
    for field in fields(kind):
        try:
            value = getattr(struct, field.name)
        except Exception as error:  # a property may raise anything
            raise HostFault(f"{type(struct).__name__} has no {field.name}; a {kind.__name__} is needed") from error
        values[field.name] = converted(field.name, value, CONVERSIONS[cast(str, field.type)])
    return kind(**values)


def converted(name: str, value: object, conversion: Callable[[Any], Value]) -> Value:
    """A value in one of the contract's types.

    Args:
        name: of the field, for the message.
        value: of any type.
        conversion: one of the functions below.

    Raises:
        HostFault: the value has a type that does not hold such values.
    """
    try:
        return conversion(value)
    except Exception as error:  # operations on a value of any type may raise anything
        raise HostFault(f"{name} is {_described(value)}, not {conversion.__doc__}") from error


def integer(value: Any) -> int:
    """an integer"""
    return operator.index(value)


def seconds(value: Any) -> float:
    """a number of seconds"""
    if not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError
    return float(cast(float, value))


def flag(value: Any) -> bool:
    """True or False"""
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(cast(bool, value))


def integers(value: Any) -> IntArray:
    """a one-dimensional array of integers"""
    return np.array(_array(value, "iu", 1), np.int64)


def flags(value: Any) -> BoolArray:
    """a one-dimensional array of bool"""
    return np.array(_array(value, "b", 1), np.bool_)


def floats(value: Any) -> FloatArray:
    """a one-dimensional array of floats"""
    return np.array(_array(value, "f", 1), np.float64)


def table(value: Any) -> FloatArray:
    """a two-dimensional array of floats"""
    return np.array(_array(value, "f", 2), np.float64)


def optional_table(value: Any) -> FloatArray | None:
    """a two-dimensional array of floats, or None"""
    return None if value is None else table(value)


def draft_lengths(value: Any) -> tuple[int, ...]:
    """a tuple of draft lengths"""
    if not isinstance(value, tuple | list) or len(cast("tuple[Any, ...]", value)) > MAX_DRAFT_LENGTH + 1:
        raise TypeError
    lengths = tuple(operator.index(each) for each in cast("tuple[Any, ...]", value))
    if not all(0 <= each <= MAX_DRAFT_LENGTH for each in lengths):
        raise ValueError
    return lengths


def optional_integers(value: Any) -> IntArray | None:
    """a one-dimensional array of integers, or None"""
    return None if value is None else integers(value)


def optional_lookup(value: Any) -> LookupView | None:
    """a LookupView, or None"""
    return None if value is None else with_contract_types(value, LookupView)


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "int": integer,
    "float": seconds,
    "bool": flag,
    "IntArray": integers,
    "IntArray | None": optional_integers,
    "FloatArray": floats,
    "LookupView | None": optional_lookup,
    "BoolArray": flags,
    "FloatArray | None": optional_table,
    "tuple[int, ...]": draft_lengths,
}
"""Conversion to each type that a field of a view or an outcome is annotated with."""


def _array(value: Any, kinds: str, dimensions: int) -> NDArray[Any]:
    if not isinstance(value, np.ndarray):
        raise TypeError
    array = cast("NDArray[Any]", value)
    # One row more than allowed, so that the check of the whole struct can say that there are too many.
    if array.ndim != dimensions or array.dtype.kind not in kinds or array.size > (MAX_REQUESTS + 1) * MAX_DRAFT_LENGTH:
        raise TypeError
    return array


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return f"an array of {array.dtype} of shape {array.shape}"
    return f"{value!r:.60}" if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"
