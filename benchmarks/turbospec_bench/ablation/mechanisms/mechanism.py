"""What an ablation switches off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from turbospec.policy import find_policy, read_policy
from turbospec.policy.adaptive.policy import AdaptivePolicy
from turbospec.policy.config import PolicyConfig


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of `adaptive`, and the constants and settings with which it does nothing."""

    name: str
    does: str
    """What it does, and what is done in its place where it is switched off."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values of `turbospec.policy.adaptive.constants.Constants`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields of the policy file."""

    @contextmanager
    def off(self) -> Iterator[PolicyConfig]:
        """Switch the mechanism off for policies that are built inside, from the settings that this yields."""
        before = AdaptivePolicy.constants
        AdaptivePolicy.constants = before._replace(**self.constants)
        try:
            yield read_policy(find_policy("adaptive")).model_copy(update=dict(self.settings))
        finally:
            AdaptivePolicy.constants = before
