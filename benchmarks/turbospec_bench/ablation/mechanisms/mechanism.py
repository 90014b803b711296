"""What an ablation switches off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from turbospec_bench.ablation.substitution import Change, replaced


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of `adaptive`, and how it is switched off."""

    name: str
    file: str
    """Where it is, within `turbospec/`."""
    constants: str
    """Its constants with their values."""
    does: str
    """What it does, and what is done in its place where it is switched off."""
    changes: Callable[[], tuple[Change, ...]]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the mechanism off for policies that are built and run inside."""
        with replaced(_made(self)):
            yield


@cache
def _made(mechanism: Mechanism) -> tuple[Change, ...]:
    """The changes; some are compiled, once a process."""
    return mechanism.changes()
