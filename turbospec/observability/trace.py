"""The decision trace: view, plan and outcome of every planned step, one line of JSON each.

    {"format": 2, "step": 812, "now": 40.117, "planned": [5, 0, 3], "accepted": [4, 0, 1], "reason": "…", …}

`TraceStep` defines the format: its fields are the keys of a line. Arrays have one entry per request, in one order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from turbospec.errors import UserError
from turbospec.files.reading import MAX_INTEGER, read_lines
from turbospec.files.writing import check_outputs
from turbospec.interface import (
    MAX_COUNT,
    MAX_DRAFT_LENGTH,
    MAX_REQUESTS,
    Phase,
    Source,
    StepOutcome,
    StepPlan,
    StepView,
)
from turbospec.observability.rotating_file import RotatingFile

log = logging.getLogger("turbospec")

HOW_TO_WRITE = "write one with `turbospec generate --trace FILE`"
MAX_REASON = 1000
"""Characters of a reason; what is longer is cut."""

Integer = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
DraftLength = Annotated[int, Field(ge=0, le=MAX_DRAFT_LENGTH)]
Number = Annotated[float, Field(ge=-MAX_COUNT, le=MAX_COUNT, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=MAX_COUNT, allow_inf_nan=False)]
Integers = Annotated[list[Integer], Field(max_length=MAX_REQUESTS)]
Counts = Annotated[list[Count], Field(max_length=MAX_REQUESTS)]
DraftLengths = Annotated[list[DraftLength], Field(max_length=MAX_REQUESTS)]


def _renamed(name: str, before: str) -> Any:
    """A field written as `name`; `before` is its name in format 1, which is still read."""
    return Field(validation_alias=AliasChoices(name, before))


@dataclass(slots=True, frozen=True)
class TraceStep:
    """One step. Names and units are those of `StepView`, `StepPlan` and `StepOutcome`, seconds and tokens."""

    format: Literal[1, 2]
    """Written as 2. Format 1 has other names for the drafter KV lag and for the steps that reuse a plan."""
    step: Count
    now: Number
    request_ids: Integers
    phase: Annotated[list[Annotated[int, Field(ge=min(Phase), le=max(Phase))]], Field(max_length=MAX_REQUESTS)]
    class_ids: Integers
    context_tokens: Counts
    emitted_tokens: Counts
    tokens_left: Integers
    drafter_lag_tokens: Annotated[Counts, _renamed("drafter_lag_tokens", "stale_tokens")]
    draft_limits: DraftLengths
    planned: DraftLengths
    """The plan's draft lengths."""
    proposed: DraftLengths
    drafted: DraftLengths
    accepted: DraftLengths
    emitted: Counts
    truncated: Annotated[list[bool], Field(max_length=MAX_REQUESTS)]
    max_draft: DraftLength
    waiting_requests: Count
    waiting_seconds: Seconds
    draft_rows: Annotated[list[Count], Field(max_length=MAX_DRAFT_LENGTH + 1)]
    draft_context_tokens: Count
    catch_up_tokens: Count
    tokens_batched: Count
    padded_tokens: Count
    prefill_tokens: Count
    attended_tokens: Count
    """The outcome's `context_tokens`: KV tokens that the target's pass attended to."""
    failures: Count
    predicted_tokens: Number | None
    """None where the policy does not predict."""
    predicted_seconds: Number | None
    draft_seconds: Seconds
    verify_seconds: Seconds
    step_seconds: Seconds
    decision_seconds: Seconds
    """Time spent planning and updating models."""
    probe: bool
    reason: str
    reused_plan_steps: Annotated[Count, _renamed("reused_plan_steps", "unplanned_steps")] = 0
    """No-draft steps since the previous line that reused its plan. The oldest traces lack these four fields. Those that
    lack only the third do not count steps with prompts."""
    reused_plan_tokens: Annotated[Count, _renamed("reused_plan_tokens", "unplanned_tokens")] = 0
    reused_plan_prefill_tokens: Count = 0
    reused_plan_seconds: Annotated[Seconds, _renamed("reused_plan_seconds", "unplanned_seconds")] = 0.0
    sources: (
        Annotated[list[Annotated[int, Field(ge=min(Source), le=max(Source))]], Field(max_length=MAX_REQUESTS)] | None
    ) = None
    """Who made each draft, as in the outcome. Traces of engines with one source have none of the last four fields."""
    lookup_lengths: DraftLengths | None = None
    lookup_scores: Annotated[list[Number], Field(max_length=MAX_REQUESTS)] | None = None
    appended: DraftLengths | None = None
    """Of `drafted`, the tokens that the look-up appended; None in a step whose plan allowed none."""

    def __post_init__(self) -> None:
        rows = (
            self.phase, self.class_ids, self.context_tokens, self.emitted_tokens, self.tokens_left,
            self.drafter_lag_tokens, self.draft_limits, self.planned, self.proposed, self.drafted, self.accepted,
            self.emitted, self.truncated,
        )  # fmt: skip
        of_lookup = (self.sources, self.lookup_lengths, self.lookup_scores, self.appended)
        rows += tuple(row for row in of_lookup if row is not None)
        if any(len(row) != len(self.request_ids) for row in rows):
            raise ValueError("arrays of different lengths")
        if any(accepted > drafted for accepted, drafted in zip(self.accepted, self.drafted, strict=True)):
            raise ValueError("more tokens accepted than drafted")
        sources = self.sources or [Source.DRAFTER] * len(self.drafted)
        for appended, drafted, source in zip(self.appended or (), self.drafted, sources, strict=False):
            if appended and (appended >= drafted or source != Source.DRAFTER):
                raise ValueError("tokens appended to no draft of the drafter")

    @classmethod
    def from_step(cls, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> TraceStep:
        return cls(
            format=2,
            step=view.step,
            now=_rounded(view.now),
            request_ids=view.request_ids.tolist(),
            phase=view.phase.tolist(),
            class_ids=view.class_ids.tolist(),
            context_tokens=view.context_tokens.tolist(),
            emitted_tokens=view.emitted_tokens.tolist(),
            tokens_left=view.tokens_left.tolist(),
            drafter_lag_tokens=view.drafter_lag_tokens.tolist(),
            draft_limits=view.draft_limits.tolist(),
            planned=plan.draft_lengths.tolist(),
            proposed=outcome.proposed.tolist(),
            drafted=outcome.drafted.tolist(),
            accepted=outcome.accepted.tolist(),
            emitted=outcome.emitted.tolist(),
            truncated=outcome.truncated.tolist(),
            max_draft=view.max_draft,
            waiting_requests=view.waiting_requests,
            waiting_seconds=_rounded(view.waiting_seconds),
            draft_rows=outcome.draft_rows.tolist(),
            draft_context_tokens=outcome.draft_context_tokens,
            catch_up_tokens=outcome.catch_up_tokens,
            tokens_batched=outcome.tokens_batched,
            padded_tokens=outcome.padded_tokens,
            prefill_tokens=outcome.prefill_tokens,
            attended_tokens=outcome.context_tokens,
            failures=outcome.failures,
            predicted_tokens=_finite(plan.predicted_tokens),
            predicted_seconds=_finite(plan.predicted_seconds),
            draft_seconds=_rounded(outcome.draft_seconds),
            verify_seconds=_rounded(outcome.verify_seconds),
            step_seconds=_rounded(outcome.step_seconds),
            decision_seconds=_rounded(decision_seconds),
            probe=plan.probe,
            # A policy may quote anything: also halves of surrogate pairs, which no UTF-8 text holds.
            reason=plan.reason[:MAX_REASON].encode("utf-8", errors="backslashreplace").decode(),
            reused_plan_steps=outcome.reused_plan_steps,
            reused_plan_tokens=outcome.reused_plan_tokens,
            reused_plan_prefill_tokens=outcome.reused_plan_prefill_tokens,
            reused_plan_seconds=_rounded(outcome.reused_plan_seconds),
            sources=None if outcome.sources is None else outcome.sources.tolist(),
            lookup_lengths=None if view.lookup is None else view.lookup.lengths.tolist(),
            lookup_scores=None if view.lookup is None else view.lookup.scores.tolist(),
            appended=None if outcome.appended is None else outcome.appended.tolist(),
        )


LINE = TypeAdapter(TraceStep)


class DecisionTrace:
    """A controller's listener that writes the trace, in files of bounded size.

    At the first step an earlier trace becomes a backup (`trace.jsonl.1` is the newest). The file is locked: no two
    processes write one trace. A disk that fails while serving ends the trace with one warning; the server continues.

    Args:
        path: The file being written. A symbolic link is followed.
        max_bytes: Size at which it becomes a backup and a new one begins.
        backups: Backups kept. With 0 an earlier trace is overwritten, and `max_bytes` does not count.

    Raises:
        UserError: the file cannot be opened for writing, or another process writes it.
    """

    def __init__(self, path: Path, *, max_bytes: int = 64 * 2**20, backups: int = 3) -> None:
        self.path = path
        check_outputs(path)
        try:
            self._file: RotatingFile | None = RotatingFile(path, max_bytes=max_bytes, backups=backups)
        except OSError as error:
            raise UserError(f"{path}: cannot write the trace ({error.strerror}); name another file") from error

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        """Write one step."""
        if self._file is None:
            return
        line = LINE.dump_json(TraceStep.from_step(view, plan, outcome, decision_seconds))
        try:
            self._file.write(line + b"\n")
        except OSError as error:
            self._end(error)

    def close(self) -> None:
        """Close the file; steps that follow are not written."""
        self._end(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, error: OSError | None) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as of_closing:
            error = error or of_closing
        if error is not None:
            log.warning("%s: cannot write the trace (%s); it ends here", self.path, error.strerror)


def read_trace(path: Path, on_broken: Callable[[int, str], None] | None = None) -> Iterator[TraceStep]:
    """Read the steps of a trace. The file is opened at once, and read although it becomes a backup meanwhile.

    Args:
        path: A file that `DecisionTrace` wrote.
        on_broken: Called with the number of each line that is not a step, and the reason; such lines are skipped.
            Without it the first broken line is an error.

    Raises:
        UserError: the file cannot be read, or a line is broken and there is no `on_broken`.
    """
    return _steps(read_lines(path, "trace", hint=HOW_TO_WRITE), path, on_broken)


def _steps(lines: Iterator[str], path: Path, on_broken: Callable[[int, str], None] | None) -> Iterator[TraceStep]:
    for number, line in enumerate(lines, start=1):
        try:
            step = LINE.validate_json(line, strict=True)
        except ValidationError as error:
            _report(path, number, error, on_broken)
        else:
            yield step


def _report(path: Path, number: int, error: ValidationError, on_broken: Callable[[int, str], None] | None) -> None:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    what = f"{field}: {first['msg']}" if field else first["msg"]
    if on_broken is None:
        raise UserError(f"{path}:{number}: not a step of a trace ({what}); remove the line") from error
    on_broken(number, what)


def _rounded(seconds: float) -> float:
    return round(seconds, 7)


def _finite(value: float) -> float | None:
    return round(value, 7) if np.isfinite(value) else None
