"""Compilation of the hot path's inner loops with numba, and the on-disk cache of compiled kernels."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypeVar, cast

from numba import njit
from numba.core import event

PACKAGE = Path(__file__).parent.parent
"""Folder of the `turbospec` package."""
STAMP = "kernels"
"""File in a package's `__pycache__` with the hash of the sources that its kernels were compiled from."""

UNCACHED = "_TURBOSPEC_KERNELS_ARE_NOT_KEPT"
"""Environment variable that is set once a warning has said so, so that worker processes do not repeat it."""

log = logging.getLogger("turbospec")


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
    """`numba.njit` with an on-disk cache, where there is a folder for it; keeps the function's type for type checkers.

    A decision should take some ten microseconds, and one numpy operation on a small array takes about two. Division by
    zero follows numpy (inf or NaN, no exception), because checking every divisor takes half of the time.
    """
    return _dispatcher(function, forceinline=False)


def inlined(function: Function) -> Function:
    """Like `compiled`, and inlined into the compiled functions that call it.

    For functions that take arrays, or structs of them, and are small or have few callers. A call that is not inlined
    counts a reference to each array, by an atomic operation: together a tenth of a decision.
    """
    return _dispatcher(function, forceinline=True)


def _dispatcher(function: Function, *, forceinline: bool) -> Function:
    dispatcher: Any = njit(error_model="numpy", forceinline=forceinline)(function)
    try:
        dispatcher.enable_caching()
        # Reads and writes of the cache are inside this context manager.
        dispatcher._cache._guard_against_spurious_io_errors = _without_cache_errors
    except RuntimeError:
        # Never in a shared temporary folder: a cached kernel is code, which anybody could put there.
        _say_uncached("neither the package's folder nor the home's cache folder can be written")
    return cast(Function, dispatcher)


def compile_for(function: Callable[..., Any], *arguments: Any) -> None:
    """Compile a kernel for the types of these arguments, or load it from the cache, and for no others from then on.

    A call with other types raises TypeError, instead of compiling for seconds.
    """
    function(*arguments)
    cast(Any, function).disable_compile()


@contextmanager
def _without_cache_errors() -> Generator[None]:
    """A kernel that cannot be read from the cache is compiled, and one that cannot be written there is used."""
    try:
        yield
    except (OSError, EOFError, UnpicklingError) as error:
        _say_uncached(str(error) or type(error).__name__)


def _say_uncached(reason: str) -> None:
    if UNCACHED in os.environ:
        return
    os.environ[UNCACHED] = "1"
    log.warning(
        "compiled kernels are not kept (%s), and every start compiles them, for about a minute; "
        "set NUMBA_CACHE_DIR to a folder of your own that can be written",
        reason,
    )


if TYPE_CHECKING:

    def unnamed(values: Values) -> Values:
        """A NamedTuple as a plain tuple, to be passed to a compiled function.

        Numba takes a microsecond longer to recognise the type of a NamedTuple. The compiled function restores the names
        by `Type(*values)`, which costs nothing there.
        """
        ...
else:
    unnamed = tuple  # a function around it would take as long as the conversion
