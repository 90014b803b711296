"""What a look-up finds: an output repeats earlier text in stretches, with other text between them.

Both kinds of stretches have random lengths, drawn from a stream of the request's own: which tokens of an output repeat
does not depend on the policy. Where a stretch ends is not known before the token after it is verified. In the `lookup`
of a class are the figures that `turbospec repeats` fits to recorded text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from turbospec.files.settings import Settings
from turbospec_sim.limits import MAX_COUNT, Count
from turbospec_sim.workload.acceptance import Probability, Rates
from turbospec_sim.workload.lengths import LogNormalLength


class GeometricLength(Settings):
    """Geometric: from its least length on, a stretch ends after each of its tokens with the same probability."""

    distribution: Literal["geometric"]
    mean: float = Field(ge=1, le=MAX_COUNT)
    """Tokens."""
    low: Count = 1
    """Least length."""

    @model_validator(mode="after")
    def _ordered(self) -> GeometricLength:
        if self.mean < self.low:
            raise ValueError(f"`mean` ({self.mean:g}) is below `low` ({self.low})")
        return self


StretchLengths = Annotated[GeometricLength | LogNormalLength, Field(discriminator="distribution")]


class Repeats(Settings):
    """The repeats in the outputs of a class, and what a look-up finds outside them."""

    repeat_tokens: StretchLengths
    """Lengths of repeats. The look-up's tokens are right inside a repeat and wrong past its end."""
    gap_tokens: StretchLengths
    """Lengths of the text between them. Its first token is where the repeat's source goes on otherwise."""
    min_match: Count = 3
    """Tokens of a repeat that are emitted before the look-up finds it. Its score is the number that are emitted."""
    false_match: Probability = 0.0
    """Share of the output positions outside the found repeats at which the look-up finds something all the same."""
    false_acceptance: float = Field(default=0.0, ge=0, le=0.99)
    """Acceptance of each token that is drafted there. The score of a false match has the same distribution: `min_match`
    and as many tokens more as would be accepted one after the other."""
    drafter_acceptance: Rates | None = None
    """Acceptance of the drafter's tokens inside repeats, by draft position; None: as elsewhere."""
