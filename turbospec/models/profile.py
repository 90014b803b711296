"""Measured step times: written by `turbospec profile`, fitted by the latency models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json

from turbospec.errors import UserError
from turbospec.files.reading import read_json
from turbospec.files.writing import write_whole
from turbospec.interface import StepOutcome

MODELS = ("target", "drafter")
CONDITIONS = (*MODELS, "device", "dtype", "threads", "temperature", "top_k", "top_p")
"""Entries of a profile's `meta` that step times depend on. The other entries only document the measurement."""
MAX_PASSES = 1024
"""Most drafter passes of a step."""

# Bounds of what is read from a file: sums and squares of such numbers stay finite.
Count = Annotated[int, Field(ge=0, le=10**9)]
ContextTokens = Annotated[int, Field(ge=0, le=10**12)]
Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
Folder = Annotated[str, Field(pattern=r"^[^\x00]*$")] | None
Condition = str | float | int | bool | None


@dataclass(slots=True, frozen=True)
class LatencySample:
    """The latency part of a `StepOutcome`, with the same names and units."""

    draft_rows: Annotated[tuple[Count, ...], Field(max_length=MAX_PASSES)]
    draft_context_tokens: ContextTokens
    catch_up_tokens: Count
    tokens_batched: Annotated[Count, Field(ge=1)]
    prefill_tokens: Count
    context_tokens: ContextTokens
    draft_seconds: Seconds
    verify_seconds: Seconds
    step_seconds: Annotated[Seconds, Field(gt=0)]
    requests: Count | None = None
    """In the step; None in profiles of earlier versions."""

    @property
    def shows_drafting(self) -> bool:
        """Whether the step drafted and its drafting was measured."""
        return bool(self.draft_rows) and self.draft_seconds > 0.0

    @classmethod
    def from_outcome(cls, outcome: StepOutcome) -> LatencySample:
        """Copy the latency part of an outcome."""
        return cls(
            draft_rows=tuple(int(rows) for rows in outcome.draft_rows),
            draft_context_tokens=outcome.draft_context_tokens,
            catch_up_tokens=outcome.catch_up_tokens,
            tokens_batched=outcome.tokens_batched,
            prefill_tokens=outcome.prefill_tokens,
            context_tokens=outcome.context_tokens,
            draft_seconds=outcome.draft_seconds,
            verify_seconds=outcome.verify_seconds,
            step_seconds=outcome.step_seconds,
            requests=len(outcome.request_ids),
        )


@dataclass(slots=True)
class Profile:
    """Step times measured on one engine, one pair of models and one machine."""

    samples: list[LatencySample]
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was measured, and how: models, device, dtype, threads, sampling parameters, date."""

    @classmethod
    def from_outcomes(cls, outcomes: Iterable[StepOutcome], **meta: Any) -> Profile:
        """Make a profile of the steps whose duration was measured."""
        measured = (outcome for outcome in outcomes if outcome.step_seconds > 0.0)
        return cls([LatencySample.from_outcome(outcome) for outcome in measured], meta)

    def differences(self, meta: dict[str, Any]) -> list[str]:
        """Conditions in which the measured engine differs from one described by `meta`.

        Returns:
            Phrases like "dtype float32, not bfloat16", the profile's value first. Entries that either side lacks are
            not compared.
        """
        return [
            f"{name} {self.meta[name]}, not {meta[name]}"
            for name in CONDITIONS
            if name in self.meta and name in meta and _condition(self.meta, name) != _condition(meta, name)
        ]

    def save(self, path: Path) -> None:
        """Write the profile as JSON; missing folders are made.

        Raises:
            UserError: the file cannot be written.
        """
        document = {"format": 1, "meta": self.meta, "samples": self.samples}
        write_whole(path, to_json(document, indent=1) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a profile written by `save`.

        Raises:
            UserError: the file cannot be read, or is not a profile of this format with samples that can be fitted.
        """
        try:
            document = _Document.model_validate(read_json(path, "profile", hint="make one with `turbospec profile`"))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise UserError(
                f"{path}: not a profile ({where}: {first['msg']}); make one with `turbospec profile`"
            ) from error
        return cls(document.samples, document.meta.model_dump(exclude_unset=True))


def _condition(meta: dict[str, Any], name: str) -> Any:
    """A condition in comparable form: the same checkpoint folder may be given by different paths."""
    return os.path.realpath(str(meta[name])) if name in MODELS else meta[name]


class _Meta(BaseModel, extra="allow"):
    """The entries of `meta` that are read; others may be anything."""

    target: Folder = None
    drafter: Folder = None
    device: Condition = None
    dtype: Condition = None
    threads: Condition = None
    temperature: Condition = None
    top_k: Condition = None
    top_p: Condition = None
    graph_sizes: list[Count] = []


class _Document(BaseModel):
    """The JSON document."""

    format: Literal[1]
    meta: _Meta
    samples: Annotated[list[LatencySample], Field(min_length=1)]
