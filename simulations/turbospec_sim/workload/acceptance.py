"""Which draft tokens are accepted: the acceptance processes of request classes.

Each output token of a request has a uniform number of its own (`randomness.uniform`), a function of the run's seed, the
request and the token's output position. A draft of the token is accepted if that number is below the acceptance
probability of the class's process. A policy therefore cannot change which tokens are predictable: two policies with one
seed are compared on the same text.

For the same reason, processes that change over time depend on a request's arrival time: its text does not change while
it is generated, and a slow policy gets the same texts as a fast one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from turbospec.files.settings import Settings
from turbospec_sim.limits import MAX_COUNT, Moment
from turbospec_sim.workload.files import InputFile

MAX_POSITIONS = 32

Probability = Annotated[float, Field(ge=0, le=1)]
Rates = Annotated[tuple[Probability, ...], Field(min_length=1, max_length=MAX_POSITIONS)]
"""Acceptance at each draft position, given that all before it were accepted; later positions have the last value."""


class IndependentAcceptance(Settings):
    """Every draft token is accepted with the same probability."""

    process: Literal["iid"]
    rate: Probability


class PositionAcceptance(Settings):
    """Acceptance depends on the draft position."""

    process: Literal["by_position"]
    rates: Rates


class MarkovAcceptance(Settings):
    """A request's text alternates between stretches with high and with low acceptance."""

    process: Literal["markov"]
    good: Rates
    bad: Rates
    good_tokens: float = Field(ge=1, le=MAX_COUNT)
    """Mean length of a stretch with high acceptance, in tokens; lengths are geometric."""
    bad_tokens: float = Field(ge=1, le=MAX_COUNT)


class DriftingAcceptance(Settings):
    """Acceptance changes linearly with the arrival time of a request."""

    process: Literal["drift"]
    before: Rates
    after: Rates
    begin_seconds: Moment
    end_seconds: Moment


class CollapsingAcceptance(Settings):
    """Requests that arrive from a moment on have another acceptance, until the end or for a while."""

    process: Literal["collapse"]
    before: Rates
    after: Rates
    at_seconds: Moment
    until_seconds: Moment | None = None


class RecordedAcceptance(Settings):
    """Recorded acceptance.

    The file is JSONL: each line is a list with 1 for every output token whose draft was accepted and 0 for others, or
    with probabilities. Requests take the lines in turn; a line that is shorter than an output repeats.
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
