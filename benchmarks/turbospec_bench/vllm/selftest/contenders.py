"""What is measured against what: vLLM alone in its own ways, and TurboSpec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OFF, ADAPTIVE = "off", "adaptive"
FIXED = "fixed-"
TABLE, VERIFICATION = "table", "adaptive-verification"


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to speculate."""

    name: str
    speculative_config: Mapping[str, Any] | None
    policy: str | None = None
    """TurboSpec's; None for vLLM alone."""


def contenders(speculative_config: Mapping[str, Any], *, quick: bool) -> list[Contender]:
    """No speculation, vLLM's fixed draft lengths, its table by batch size and its adaptive verification, TurboSpec.

    Args:
        speculative_config: the user's.
        quick: whether to leave out the shorter fixed lengths.
    """
    longest = int(speculative_config["num_speculative_tokens"])
    lengths = [length for length in ([3] if quick else [1, 3]) if length < longest] + [longest]
    table = [[1, 4, longest], [5, 32, min(3, longest)], [33, 1024, min(1, longest)]]
    return [
        Contender(OFF, None),
        *(Contender(f"{FIXED}{each}", {**speculative_config, "num_speculative_tokens": each}) for each in lengths),
        Contender(TABLE, {**speculative_config, "num_speculative_tokens_per_batch_size": table}),
        Contender(VERIFICATION, {**speculative_config, "enable_adaptive_verification": True}),
        Contender(ADAPTIVE, speculative_config, policy="adaptive"),
    ]


@dataclass(frozen=True, slots=True)
class Figures:
    """Throughput of one contender over the rounds."""

    name: str
    rates: Sequence[float]
    """Output tokens/s of every timed batch."""
    accepted_length: float
    """Output tokens per request and step: 1 without speculation."""
    drafted: int
    """Draft tokens verified."""
    differing: int
    """Prompts whose output differs from the reference by more than a near tie."""

    @property
    def median(self) -> float:
        """Tokens/s."""
        ordered = sorted(self.rates)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
