"""Measured step times: what `turbospec profile` writes and the latency models are fitted from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from turbospec.errors import UserError
from turbospec.types import StepOutcome

FORMAT = 1


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
    """What was measured: models, device, threads, date."""

    @classmethod
    def from_outcomes(cls, outcomes: Iterable[StepOutcome], **meta: Any) -> Profile:
        return cls([LatencySample.from_outcome(outcome) for outcome in outcomes], meta)

    def save(self, path: Path) -> None:
        document = {"format": FORMAT, "meta": self.meta, "samples": [asdict(sample) for sample in self.samples]}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a profile that `save` wrote.

        Raises:
            UserError: the file is missing, is not JSON, or is not a profile of this format.
        """
        try:
            document = json.loads(path.read_text())
        except OSError as error:
            raise UserError(f"{path}: cannot read the profile ({error.strerror}); make one with `turbospec profile`") from error
        except ValueError as error:
            raise UserError(f"{path}: not JSON ({error}); make a profile with `turbospec profile`") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UserError(f"{path}: not a profile of format {FORMAT}; make one with `turbospec profile`")
        try:
            samples = [LatencySample(**{**row, "draft_rows": tuple(row["draft_rows"])}) for row in document["samples"]]
            return cls(samples, dict(document.get("meta", {})))
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: broken profile ({error}); make a new one with `turbospec profile`") from error
