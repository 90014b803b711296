"""What competes in a configuration: something that serves a load and says how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from turbospec_bench.matrix import Variant
from turbospec_bench.metrics import RequestRecord, summarise
from turbospec_bench.recorder import Step
from turbospec_bench.text_quality import text_figures

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's serving of one load."""

    figures: Figures
    record: dict[str, Any]
    """How it went over time; empty for a contender that does not show its steps."""
    steps: Sequence[Step] = ()
    """All of them, where they are to be traced."""


LoadT = TypeVar("LoadT", contravariant=True)
"""What a contender is given to serve: requests, or what makes them."""


class Contender(Protocol[LoadT]):
    @property
    def variant(self) -> Variant: ...

    def serve(self, load: LoadT) -> Run: ...


def client_figures(records: Sequence[RequestRecord], duration: float) -> Figures:
    """What the client saw, and whether it was text."""
    return summarise(records, duration) | text_figures([record.token_ids for record in records])
