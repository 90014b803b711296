"""The decision trace: view, plan and outcome of every planned step, one line of JSON each.

    {"format": 2, "step": 812, "now": 40.117, "planned": [5, 0, 3], "accepted": [4, 0, 1], "reason": "…", …}

`TraceStep` defines the format: its fields are the keys of a line. Arrays have one entry per request, in one order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, NoReturn, Self

import numpy as np
from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from turbospec.errors import UserError
from turbospec.interface import StepOutcome, StepPlan, StepView

log = logging.getLogger("turbospec")


def _renamed(name: str, before: str) -> Any:
    """A field written as `name`; `before` is its name in format 1, which is still read."""
    return Field(validation_alias=AliasChoices(name, before))


@dataclass(slots=True, frozen=True)
class TraceStep:
    """One step. Names and units are those of `StepView`, `StepPlan` and `StepOutcome`, seconds and tokens."""

    format: Literal[1, 2]
    """Written as 2. Format 1 has other names for the drafter KV lag and for the steps that reuse a plan."""
    step: int
    now: float
    request_ids: list[int]
    phase: list[int]
    class_ids: list[int]
    context_tokens: list[int]
    emitted_tokens: list[int]
    tokens_left: list[int]
    drafter_lag_tokens: Annotated[list[int], _renamed("drafter_lag_tokens", "stale_tokens")]
    draft_limits: list[int]
    planned: list[int]
    """The plan's draft lengths."""
    proposed: list[int]
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    truncated: list[bool]
    max_draft: int
    waiting_requests: int
    waiting_seconds: float
    draft_rows: list[int]
    draft_context_tokens: int
    catch_up_tokens: int
    tokens_batched: int
    padded_tokens: int
    prefill_tokens: int
    attended_tokens: int
    """The outcome's `context_tokens`: KV tokens that the target's pass attended to."""
    failures: int
    predicted_tokens: float | None
    """None where the policy does not predict."""
    predicted_seconds: float | None
    draft_seconds: float
    verify_seconds: float
    step_seconds: float
    decision_seconds: float
    """Time spent planning and updating models."""
    probe: bool
    reason: str
    reused_plan_steps: Annotated[int, _renamed("reused_plan_steps", "unplanned_steps")] = 0
    """No-draft steps since the previous line that reused its plan. The oldest traces lack these three fields."""
    reused_plan_tokens: Annotated[int, _renamed("reused_plan_tokens", "unplanned_tokens")] = 0
    reused_plan_seconds: Annotated[float, _renamed("reused_plan_seconds", "unplanned_seconds")] = 0.0

    def __post_init__(self) -> None:
        rows = (
            self.phase, self.class_ids, self.context_tokens, self.emitted_tokens, self.tokens_left,
            self.drafter_lag_tokens, self.draft_limits, self.planned, self.proposed, self.drafted, self.accepted,
            self.emitted, self.truncated,
        )  # fmt: skip
        if any(len(row) != len(self.request_ids) for row in rows):
            raise ValueError("arrays of different lengths")

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
            reason=plan.reason,
            reused_plan_steps=outcome.reused_plan_steps,
            reused_plan_tokens=outcome.reused_plan_tokens,
            reused_plan_seconds=_rounded(outcome.reused_plan_seconds),
        )


LINE = TypeAdapter(TraceStep)


class _TraceFile(RotatingFileHandler):
    """Writes line by line, because servers are often killed and the last steps before that matter most."""

    def handleError(self, record: logging.LogRecord) -> NoReturn:
        raise  # by default `logging` prints a traceback for every record and continues


class DecisionTrace:
    """A controller's listener that writes the trace, in files of bounded size.

    An earlier trace is kept as a backup (`trace.jsonl.1` is the newest). A disk that fails while serving ends the trace
    with one warning; the server continues.

    Args:
        path: The file being written.
        max_bytes: Size at which it becomes a backup and a new one begins.
        backups: Backups kept. With 0 an earlier trace is overwritten, and `max_bytes` does not count.

    Raises:
        UserError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path, *, max_bytes: int = 64 * 2**20, backups: int = 3) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A handler that rotates appends; the mode counts without rotation only.
            self._file: _TraceFile | None = _TraceFile(
                path, "w", maxBytes=max_bytes if backups else 0, backupCount=backups, encoding="utf-8"
            )
            if path.is_file() and path.stat().st_size:
                self._file.doRollover()
        except OSError as error:
            raise _cannot_write(path, error) from error

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        """Write one step."""
        if self._file is None:
            return
        line = LINE.dump_json(TraceStep.from_step(view, plan, outcome, decision_seconds)).decode()
        try:
            self._file.emit(logging.makeLogRecord({"msg": line}))
        except OSError as error:
            self._give_up(self._file, error)

    def close(self) -> None:
        """Close the file; steps that follow are not written."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(self._file, error)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _give_up(self, file: _TraceFile, error: OSError) -> None:
        log.warning("%s: cannot write the trace (%s); it ends here", self.path, error.strerror)
        with suppress(OSError):  # what is still buffered fails again
            file.close()
        self._file = None


def check_writable(path: Path) -> None:
    """Check that a trace can be written to `path`; an existing file is not changed.

    Raises:
        UserError: the file cannot be opened for writing.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot write the trace ({error.strerror}); name another file")


def read_trace(path: Path, on_broken: Callable[[int, str], None] | None = None) -> Iterator[TraceStep]:
    """Read the steps of a trace.

    Args:
        path: A file that `DecisionTrace` wrote.
        on_broken: Called with the number of each line that is not a step, and the reason; such lines are skipped.
            Without it the first broken line is an error.

    Raises:
        UserError: the file cannot be read, or a line is broken and there is no `on_broken`.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    step = LINE.validate_json(line)
                except ValidationError as error:
                    _report(path, number, error, on_broken)
                else:
                    yield step
    except OSError as error:
        raise UserError(
            f"{path}: cannot read the trace ({error.strerror}); write one with `turbospec generate --trace FILE`"
        ) from error


def _report(path: Path, number: int, error: ValidationError, on_broken: Callable[[int, str], None] | None) -> None:
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    what = f"{field}: {first['msg']}" if field else first["msg"]
    if on_broken is None:
        raise UserError(f"{path}:{number}: not a step of a trace ({what}); remove the line") from error
    on_broken(number, what)


def _rounded(seconds: float) -> float:
    return round(seconds, 7)


def _finite(value: float) -> float | None:
    return round(value, 7) if np.isfinite(value) else None
