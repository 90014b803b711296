"""Replacing parts of the product for the duration of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

from numba import njit

from turbospec.errors import UserError


@dataclass(frozen=True)
class Change:
    """One attribute of a module or a class, and what it is replaced by."""

    owner: Any
    name: str
    value: Any


@contextmanager
def replaced(changes: tuple[Change, ...]) -> Iterator[None]:
    """Replace attributes, and put the old values back at the end.

    Raises:
        UserError: an owner has no such attribute of its own, because the product has changed since.
    """
    old: list[Change] = []
    try:
        for change in changes:
            if change.name not in vars(change.owner):
                raise UserError(f"ablation: {change.owner.__name__} has no `{change.name}` any more")
            old.append(Change(change.owner, change.name, vars(change.owner)[change.name]))
            setattr(change.owner, change.name, change.value)
        yield
    finally:
        for change in reversed(old):
            setattr(change.owner, change.name, change.value)


def with_globals(function: Callable[..., Any], **changes: Any) -> Callable[..., Any]:
    """A copy of a function that finds other values of module-level names; compiled again if the function is compiled.

    Compiled functions contain the values of such names, so that replacing a module's attribute does not change them.

    Raises:
        UserError: the function does not use such a name, because the product has changed since.
    """
    source = cast(FunctionType, getattr(function, "py_func", function))
    unknown = changes.keys() - set(source.__code__.co_names)
    if unknown:
        raise UserError(f"ablation: {source.__qualname__} does not use {', '.join(sorted(unknown))} any more")
    copy = FunctionType(
        source.__code__, source.__globals__ | changes, source.__name__, source.__defaults__, source.__closure__
    )
    copy.__kwdefaults__ = source.__kwdefaults__
    return copy if source is function else njit(error_model="numpy")(copy)


def with_defaults(function: Callable[..., Any], **changes: Any) -> Callable[..., Any]:
    """A copy of a function with other defaults of its parameters.

    Raises:
        UserError: it has no such parameter with a default, because the product has changed since.
    """
    source = cast(FunctionType, function)
    code = source.__code__
    places = code.co_varnames[: code.co_argcount]
    positional = dict(
        zip(places[len(places) - len(source.__defaults__ or ()) :], source.__defaults__ or (), strict=True)
    )
    keywords = dict(source.__kwdefaults__ or {})
    for name, value in changes.items():
        if name not in positional and name not in keywords:
            raise UserError(f"ablation: {source.__qualname__} has no parameter `{name}` with a default any more")
        (positional if name in positional else keywords)[name] = value
    copy = FunctionType(code, source.__globals__, source.__name__, tuple(positional.values()), source.__closure__)
    copy.__kwdefaults__ = keywords or None
    return copy
