"""Which draft tokens are right: the acceptance processes of request classes.

Each output token of a request has a uniform number of its own (`randomness.uniform`), a function of the run's seed,
the request and the token's place in the output. A draft of it is accepted if that number is below the acceptance that
the class's process gives. What a policy drafts, and when, therefore cannot change which tokens are predictable: two
policies under one seed are compared on the same text.

Processes that change over time go by a request's arrival for the same reason: a text does not change while it is
written, and a slow policy must not be served other texts than a fast one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from turbospec.files.settings import Settings
from turbospec_sim.workload.files import InputFile

MAX_POSITIONS = 32

Probability = Annotated[float, Field(ge=0, le=1)]
Rates = Annotated[tuple[Probability, ...], Field(min_length=1, max_length=MAX_POSITIONS)]
"""Acceptance of each draft position, given that all before it were accepted; the last stands for those after it."""


class IndependentAcceptance(Settings):
    """Every draft token is accepted with the same probability."""

    process: Literal["iid"]
    rate: Probability


class PositionAcceptance(Settings):
    """Acceptance depends on the position in the draft."""

    process: Literal["by_position"]
    rates: Rates


class MarkovAcceptance(Settings):
    """A request's text goes to and fro between stretches that are easy to predict and stretches that are not."""

    process: Literal["markov"]
    good: Rates
    bad: Rates
    good_tokens: float = Field(ge=1)
    """Mean length of an easy stretch, in tokens; lengths are geometric."""
    bad_tokens: float = Field(ge=1)


class DriftingAcceptance(Settings):
    """Acceptance goes from one value to another, linearly in the time of a request's arrival."""

    process: Literal["drift"]
    before: Rates
    after: Rates
    begin_seconds: float = Field(ge=0)
    end_seconds: float = Field(ge=0)


class CollapsingAcceptance(Settings):
    """Requests that arrive after a moment have another acceptance, for good or for a while."""

    process: Literal["collapse"]
    before: Rates
    after: Rates
    at_seconds: float = Field(ge=0)
    until_seconds: float | None = Field(default=None, ge=0)


class RecordedAcceptance(Settings):
    """Acceptance as it was recorded.

    The file is JSONL: each line a list with 1 for every output token that the drafter got right and 0 for others, or
    probabilities between them. Requests take the lines in turn, and a line that is too short begins anew.
    """

    process: Literal["trace"]
    file: InputFile


Acceptance = Annotated[
    IndependentAcceptance
    | PositionAcceptance
    | MarkovAcceptance
    | DriftingAcceptance
    | CollapsingAcceptance
    | RecordedAcceptance,
    Field(discriminator="process"),
]
