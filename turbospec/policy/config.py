"""The fields that all policy files share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from turbospec.controller import GuardConfig
from turbospec.files.settings import Settings
from turbospec.interface import MAX_DRAFT_LENGTH, MAX_REQUESTS, Policy
from turbospec.models.profile import Profile

CEILING: dict[str, Any] = {"x-ceiling": True}
"""Marks, in the JSON schema, a field whose upper bound only refuses the absurd: nothing to search up to in tuning."""
DraftLength = Annotated[int, Field(ge=0, le=MAX_DRAFT_LENGTH, json_schema_extra=CEILING)]
"""Type of a field that names a draft length, in tokens."""
BatchSize = Annotated[int, Field(ge=1, le=MAX_REQUESTS, json_schema_extra=CEILING)]
"""Type of a field that names a number of requests in a step."""
Steps = Annotated[int, Field(ge=0, le=1_000_000, json_schema_extra=CEILING)]
"""Type of a field that names a number of steps."""


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
    if list(draft_lengths) != sorted(set(draft_lengths)):
        raise ValueError("draft lengths must be 0 or more and rise from one to the next")
    return draft_lengths


DraftLengths = Annotated[tuple[DraftLength, ...], Field(min_length=1), AfterValidator(_rising)]
"""Type of a field that lists candidate draft lengths: tokens, in rising order, at least one."""
