"""Compilation of the hot path's inner loops."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import event

PACKAGE = Path(__file__).parent.parent
STAMP = "kernels"


def drop_stale_kernels(package: Path, *used: Path) -> None:
    """Remove a package's compiled kernels that are older than its sources, or those of the packages that it uses.

    Numba looks at the file that a function is in, and not at those of the functions that are compiled into it.
    """
    stamp = hashlib.sha256()
    for source in sorted(source for folder in (package, *used) for source in folder.rglob("*.py")):
        state = source.stat()
        stamp.update(f"{source.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    caches = package / "__pycache__"
    with suppress(OSError):  # where nothing can be written, numba keeps its own cache elsewhere, by the package's path
        before = caches / STAMP
        if before.exists() and before.read_text() == stamp.hexdigest():
            return
        for kernel in package.rglob("__pycache__/*.nb[ic]"):
            kernel.unlink(missing_ok=True)
        caches.mkdir(exist_ok=True)
        before.write_text(stamp.hexdigest())


drop_stale_kernels(PACKAGE)


def kernels_are_cached(package: Path) -> bool:
    """Whether a package has compiled kernels on disk. False too where numba keeps them elsewhere."""
    return any(package.rglob("__pycache__/*.nbi"))


class _FirstCompilation(event.Listener):
    def __init__(self, say: Callable[[], None]) -> None:
        self._say: Callable[[], None] | None = say

    def on_start(self, event: object) -> None:
        say, self._say = self._say, None
        if say is not None:
            say()

    def on_end(self, event: object) -> None:
        pass


def on_first_compilation(say: Callable[[], None]) -> None:
    """Call `say` once, when this process begins to compile a kernel that it found in no cache."""
    register = cast(Callable[[str, event.Listener], None], event.register)  # pyright: ignore[reportUnknownMemberType]
    register("numba:compile", _FirstCompilation(say))


Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`numba.njit` with the result cached on disk, keeping the function's type for the checker.

    Plan and observe may take a few hundred microseconds at most, and numpy spends two on every operation over a small
    batch. Division by zero is numpy's, not Python's: checking every divisor costs half of the time.
    """
    return cast(Function, njit(cache=True, error_model="numpy")(function))
