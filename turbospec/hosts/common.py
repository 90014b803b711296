"""What hosts share: engines that others wrote, driven by the same controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReusedSteps:
    """Steps that ran on a reused plan and have no outcome of their own; the next outcome reports them in sums."""

    steps: int = 0
    tokens: int = 0
    """Tokens that they emitted."""
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count one more step."""
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds

    def take(self) -> ReusedSteps:
        """The sums since the last call, which start again from 0."""
        taken = ReusedSteps(self.steps, self.tokens, self.seconds)
        self.steps, self.tokens, self.seconds = 0, 0, 0.0
        return taken
