"""Compilation of the hot path's inner loops with numba, and the on-disk cache of compiled kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from numba import njit
from numba.core import event

PACKAGE = Path(__file__).parent.parent
"""Folder of the `turbospec` package."""
STAMP = "kernels"
"""File in a package's `__pycache__` with the hash of the sources that its kernels were compiled from."""


def drop_stale_kernels(package: Path, *used: Path) -> None:
    """Delete a package's cached kernels if a source file of it, or of the packages that it uses, has changed.

    Numba invalidates a cached kernel when the file of the function itself changes, but not when the file of a function
    that is inlined into it does.

    Args:
        package: folder whose kernels are checked.
        used: folders of other packages whose functions its kernels call.
    """
    stamp = hashlib.sha256()
    for source in sorted(source for folder in (package, *used) for source in folder.rglob("*.py")):
        state = source.stat()
        stamp.update(f"{source.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    caches = package / "__pycache__"
    # In a read-only package nothing is cached here: numba then uses the user's cache folder, which is not checked.
    with suppress(OSError):
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
Values = TypeVar("Values", bound=tuple[Any, ...])


def compiled(function: Function) -> Function:
    """`numba.njit` with an on-disk cache; keeps the function's type for type checkers.

    A decision may take a few hundred microseconds, and one numpy operation on a small array takes about two. Division
    by zero follows numpy (inf or NaN, no exception), because checking every divisor takes half of the time.
    """
    return cast(Function, njit(cache=True, error_model="numpy")(function))


if TYPE_CHECKING:

    def unnamed(values: Values) -> Values:
        """A NamedTuple as a plain tuple, to be passed to a compiled function.

        Numba takes a microsecond longer to recognise the type of a NamedTuple. The compiled function restores the names
        by `Type(*values)`, which costs nothing there.
        """
        ...
else:
    unnamed = tuple  # a function around it would take as long as the conversion
