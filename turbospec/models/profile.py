"""Measured step times: written by `turbospec profile`, fitted by the latency models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from turbospec.errors import UserError
from turbospec.interface import StepOutcome

MODELS = ("target", "drafter")
CONDITIONS = (*MODELS, "device", "dtype", "threads", "temperature", "top_k", "top_p")
"""Entries of a profile's `meta` that step times depend on. The other entries only document the measurement."""


@dataclass(slots=True, frozen=True)
class LatencySample:
    """The latency part of a `StepOutcome`, with the same names and units."""

    draft_rows: tuple[int, ...]
    draft_context_tokens: int
    catch_up_tokens: int
    tokens_batched: int
    prefill_tokens: int
    context_tokens: int
    draft_seconds: float
    verify_seconds: float
    step_seconds: float

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
        )


@dataclass(slots=True)
class Profile:
    """Step times measured on one engine, one pair of models and one machine."""

    samples: list[LatencySample]
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was measured, and how: models, device, dtype, threads, sampling parameters, date."""

    @classmethod
    def from_outcomes(cls, outcomes: Iterable[StepOutcome], **meta: Any) -> Profile:
        """Make a profile of measured steps."""
        return cls([LatencySample.from_outcome(outcome) for outcome in outcomes], meta)

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
        """Write the profile as JSON; missing folders are made."""
        document = _Document(format=1, meta=self.meta, samples=self.samples)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a profile written by `save`.

        Raises:
            UserError: the file cannot be read, or is not a profile of this format.
        """
        try:
            document = _Document.model_validate_json(path.read_bytes())
        except OSError as error:
            raise UserError(f"{path}: cannot read it ({error.strerror}); make one with `turbospec profile`") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise UserError(
                f"{path}: not a profile ({where}: {first['msg']}); make one with `turbospec profile`"
            ) from error
        return cls(document.samples, document.meta)


def _condition(meta: dict[str, Any], name: str) -> Any:
    """A condition in comparable form: the same checkpoint folder may be given by different paths."""
    return Path(str(meta[name])).resolve() if name in MODELS else meta[name]


class _Document(BaseModel):
    """The JSON document."""

    format: Literal[1]
    meta: dict[str, Any]
    samples: list[LatencySample]
