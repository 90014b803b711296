"""Compilation of the hot path's inner loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`numba.njit` with the result cached on disk, keeping the function's type for the checker.

    Plan and observe may take a few hundred microseconds at most, and numpy spends two on every operation over a small
    batch. Division by zero is numpy's, not Python's: checking every divisor costs half of the time.
    """
    return cast(Function, njit(cache=True, error_model="numpy")(function))
