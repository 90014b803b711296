"""Verdicts: are outputs those without speculation, and does the drafter run as often as it should?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NEAR_TIE = 0.25
"""Largest gap of log-probabilities between two tokens of which either may be the greedy one. Kernels round differently
for other batch sizes: in bfloat16 by some 0.05 to 0.1."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output first differs from the reference."""

    prompt: int
    """Number of the prompt, from 0."""
    position: int
    """Output token, from 0."""
    expected: int | None
    """Token; None where the reference ended."""
    got: int | None
    """Token; None where the output ended."""
    gap: float | None
    """By how much the reference finds its own token more likely (nats); None where the other is not among its most
    likely tokens."""

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return self.gap is not None and self.gap <= NEAR_TIE


def differences(
    expected: Sequence[Sequence[int]],
    got: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[Mapping[str, float]]],
) -> list[Difference]:
    """The first difference of every output that differs.

    Args:
        expected: output tokens of each prompt without speculation.
        got: with it.
        logprobs: of the reference's most likely tokens at every position, by token number as JSON writes it.
    """
    found: list[Difference] = []
    for prompt, (theirs, ours) in enumerate(zip(expected, got, strict=True)):
        if [*theirs] == [*ours]:
            continue
        position = next(
            (at for at, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours))
        )
        token = theirs[position] if position < len(theirs) else None
        other = ours[position] if position < len(ours) else None
        gap = None
        if token is not None and other is not None:
            likely = logprobs[prompt][position]
            if str(other) in likely:
                gap = likely[str(token)] - likely[str(other)]
        found.append(Difference(prompt, position, token, other, gap))
    return found


@dataclass(frozen=True, slots=True)
class Passes:
    """Drafter passes by draft length K, over the steps of one worker."""

    by_length: Mapping[int, Mapping[int, int]]
    """For each longest draft of a step: how many steps had how many passes."""
    wrong: int
    """Steps with passes that should not have been."""
    total: int
    """Steps."""


def count_passes(steps: Sequence[Sequence[int]], *, one_pass: bool) -> Passes:
    """Count a worker's drafter passes.

    K passes for a draft of K, or one where the method drafts all positions at once. At K = 0 none, but for one over
    verified drafts, a prompt or drafter KV lag.

    Args:
        steps: of each step, as in `passes`.
        one_pass: whether the method drafts all positions in one pass.
    """
    by_length: dict[int, dict[int, int]] = {}
    wrong = 0
    for longest, several, ran in steps:
        counts = by_length.setdefault(longest, {})
        counts[ran] = counts.get(ran, 0) + 1
        due = min(longest, 1) if one_pass else longest
        wrong += ran != due if longest else ran > several
    return Passes(
        {length: dict(sorted(counts.items())) for length, counts in sorted(by_length.items())}, wrong, len(steps)
    )
