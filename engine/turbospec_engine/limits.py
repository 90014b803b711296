"""Refuses settings that are out of range, or no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turbospec import UserError

MAX_INTEGER = 2**63 - 1


def check_integer(name: str, value: object, least: int, most: int = MAX_INTEGER, hint: str = "") -> None:
    """Refuse a setting that is no integer from `least` to `most`.

    Args:
        name: of the setting.
        value: its value.
        least: smallest value allowed.
        most: largest value allowed.
        hint: what a value means, for the end of the error line; may be empty.

    Raises:
        UserError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UserError(f"{name}={value!r} is not an integer; use at least {least}{hint}")
    if value < least:
        raise UserError(f"{name}={value} is too small; use at least {least}{hint}")
    if value > most:
        raise UserError(f"{name} is too large; use at most {most}{hint}")


def are_token_ids(values: object) -> bool:
    """Whether these are integers in an order; whether the vocabulary has them is not checked."""
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Sequence):
        return False
    return all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values)


def check_number(name: str, value: object) -> float:
    """The value of a setting that must be a finite number.

    Raises:
        UserError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UserError(f"{name}={value!r} is not a number; use one")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{name}={number} is not finite; use a finite number")
    return number
