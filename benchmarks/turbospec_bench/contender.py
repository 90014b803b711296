"""A contender: one variant on one engine, which serves a load and says how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from turbospec_bench.metrics import RequestRecord, summarise
from turbospec_bench.recorder import Step
from turbospec_bench.text_quality import text_figures
from turbospec_bench.variant import Variant

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's serving of one load."""

    figures: Figures
    record: dict[str, Any]
    """Figures over time; empty for a contender that does not show its steps."""
    steps: Sequence[Step] = ()
    """Every step, where they are to be traced."""
    other_cores: float | None = None
    """Cores that other processes used meanwhile, on average; None where that is not known."""
    disturbed: bool = False
    """Whether that was more than the benchmark left free."""


LoadT = TypeVar("LoadT", contravariant=True)
"""What a contender is given to serve: requests, or what makes them."""


class Contender(Protocol[LoadT]):
    """A policy in an engine, ready to serve loads. What the rounds of a benchmark compare."""

    @property
    def variant(self) -> Variant:
        """The policy and how its engine runs it."""
        ...

    def serve(self, load: LoadT) -> Run:
        """Serve a load to its end."""
        ...


def client_figures(records: Sequence[RequestRecord], duration: float) -> Figures:
    """Latency and throughput as the client saw them, and whether the output was text."""
    return summarise(records, duration) | text_figures([record.token_ids for record in records])
