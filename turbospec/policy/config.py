"""What every policy file has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from turbospec.controller import GuardConfig
from turbospec.files.settings import Settings
from turbospec.interface import Policy
from turbospec.models.profile import Profile


class PolicyConfig(Settings, ABC):
    """The fields of every policy file. Each policy adds `policy`, the name of its kind, and its own settings."""

    version: Literal[1]
    """Version of the policy file format."""
    description: str = ""
    """For people; the controller ignores it."""
    guard: GuardConfig = Field(default_factory=GuardConfig)
    """What stands in for the policy where it fails."""

    @abstractmethod
    def build(self, profile: Profile | None, seed: int) -> Policy:
        """Make the policy that these settings describe.

        Args:
            profile: step times measured on the engine, for the policies that predict a step's time.
            seed: for the policies that draw at random.
        """


def _rising(draft_lengths: tuple[int, ...]) -> tuple[int, ...]:
    if draft_lengths[0] < 0 or list(draft_lengths) != sorted(set(draft_lengths)):
        raise ValueError("draft lengths must be 0 or more and rise from one to the next")
    return draft_lengths


DraftLengths = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_rising)]
"""Draft lengths to choose from, in tokens, rising."""
