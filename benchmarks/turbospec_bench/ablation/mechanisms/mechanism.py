"""What an ablation switches off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from turbospec.policy.adaptive.policy import AdaptivePolicy


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of `adaptive`, and the constants with which it does nothing."""

    name: str
    does: str
    """What it does, and what is done in its place where it is switched off."""
    constants: dict[str, Any]
    """Values of `turbospec.policy.adaptive.constants.Constants`."""

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch the mechanism off for policies that are built inside."""
        before = AdaptivePolicy.constants
        AdaptivePolicy.constants = before._replace(**self.constants)
        try:
            yield
        finally:
            AdaptivePolicy.constants = before
