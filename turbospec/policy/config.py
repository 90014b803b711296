"""What every policy file has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from turbospec.controller import GuardConfig
from turbospec.profile import Profile
from turbospec.types import StepController


class PolicyConfig(BaseModel, ABC):
    """The fields of every policy file. Each policy adds `policy`, the name of its kind, and its own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    version: Literal[1] = 1
    """Version of the policy file format."""
    description: str = ""
    """For people; the controller ignores it."""
    guard: GuardConfig = Field(default_factory=GuardConfig)
    """What stands in for the policy where it fails."""

    @abstractmethod
    def build(self, profile: Profile | None, seed: int) -> StepController:
        """Make the policy that these settings describe.

        Args:
            profile: step times measured on the engine, for the policies that predict a step's time.
            seed: for the policies that draw at random.
        """
