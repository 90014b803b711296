"""The fields that all policy files share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from turbospec.controller import GuardConfig
from turbospec.files.settings import Settings
from turbospec.interface import Policy
from turbospec.models.profile import Profile


class PolicyConfig(Settings, ABC):
    """Base of every policy's settings.

    A policy's own class adds `policy: Literal["<its name>"]`, its fields with defaults, bounds and docstrings, and
    `build`. CONTRIBUTING.md has an example.
    """

    version: Literal[1]
    """Version of the policy file format."""
    description: str = ""
    """A note for readers; the controller ignores it."""
    guard: GuardConfig = Field(default_factory=GuardConfig)
    """Fallback where the policy fails, and what counts as a failure."""

    @abstractmethod
    def build(self, profile: Profile | None, seed: int) -> Policy:
        """Make the policy that these settings describe.

        Args:
            profile: step times measured on the engine; None where there are none. Only for policies that predict step
                times.
            seed: for policies that draw random numbers.

        Raises:
            UserError: the policy cannot use the profile.
        """


def _rising(draft_lengths: tuple[int, ...]) -> tuple[int, ...]:
    if draft_lengths[0] < 0 or list(draft_lengths) != sorted(set(draft_lengths)):
        raise ValueError("draft lengths must be 0 or more and rise from one to the next")
    return draft_lengths


DraftLengths = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_rising)]
"""Type of a field that lists candidate draft lengths: tokens, in rising order, at least one."""
