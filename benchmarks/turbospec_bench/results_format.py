"""What a results file must hold to be read: the fields of its rows that are judged, drawn, compared or resumed from.

A file may have been edited, cut short, or written by another command, so that every field is checked here, once.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from turbospec.files.results_file import ALL_AT_ONCE
from turbospec_bench.matrix import MAX_ROUNDS

RATIOS = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms")
"""Figures that a row also gives as ratios to `off`."""
MAX_ROWS = 10_000
MAX_POINTS = 10_000

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]+$")]
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
Positive = Annotated[float, Field(gt=0, le=1e15)]
Ratio = Annotated[float, Field(ge=0, le=1e15)]
Series = Annotated[list[Number | None], Field(max_length=MAX_POINTS)]
"""None is what JSON has for a number that is not finite."""


class Strict(BaseModel, strict=True, extra="forbid"):
    """No text is taken for a number."""


class RatioToOff(Strict):
    """A ratio and its interval."""

    value: Ratio
    low: Ratio
    high: Ratio


class Timeline(Strict):
    """`Timeline.document` of `recorder`."""

    seconds: Annotated[list[Number], Field(max_length=MAX_POINTS)]
    decoding_requests: Series
    draft_length: Series
    acceptance: Series

    @model_validator(mode="after")
    def _check_lengths(self) -> Timeline:
        if len({len(self.seconds), len(self.decoding_requests), len(self.draft_length), len(self.acceptance)}) > 1:
            raise ValueError("its series differ in length")
        return self


class StepTimes(Strict):
    """Predicted and measured times of some steps."""

    predicted_ms: Annotated[list[Positive], Field(max_length=MAX_POINTS)]
    measured_ms: Annotated[list[Positive], Field(max_length=MAX_POINTS)]
    prefill_tokens: Annotated[list[int], Field(max_length=MAX_POINTS)]

    @model_validator(mode="after")
    def _check_lengths(self) -> StepTimes:
        if len({len(self.predicted_ms), len(self.measured_ms), len(self.prefill_tokens)}) > 1:
            raise ValueError("its series differ in length")
        return self


class Empty(Strict):
    """Of a run that shows no steps."""


class ResultRow(Strict, extra="allow"):
    """One policy in one configuration. Fields that are not named here are figures, and not read."""

    workload: Name
    drafter: str
    concurrency: Annotated[int, Field(ge=1)] | None
    request_rate: Positive | Literal["inf"]
    policy: Name
    emit: Literal["before_draft", "after_draft"] | None
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
    output_throughput: Positive
    mean_tpot_ms: Positive
    mean_ttft_ms: Positive
    p99_ttft_ms: Positive
    mean_draft_length: Number | None = None
    mean_accepted_length: Number | None = None
    draft_time_share: Number | None = None
    controller_time_share: Number | None = None
    ratio_to_off: dict[str, RatioToOff]
    round_figures: dict[str, list[Number | None]]
    other_cores: list[Number | None] | None = None
    """The oldest files lack this field and the next."""
    disturbed_rounds: list[int] = []
    timeline: Timeline | Empty | None = None
    step_times: StepTimes | Empty | None = None
    acceptance_by_position: Series | None = None

    @model_validator(mode="after")
    def _check(self) -> ResultRow:
        if (self.concurrency is None) == (self.request_rate == ALL_AT_ONCE):
            raise ValueError("needs either a concurrency or a request_rate")
        if missing := [name for name in RATIOS if name not in self.ratio_to_off or name not in self.round_figures]:
            raise ValueError(f"lacks {missing[0]} in ratio_to_off or round_figures")
        for name, values in self.round_figures.items():
            if len(values) != self.rounds:
                raise ValueError(f"round_figures.{name} has {len(values)} values for {self.rounds} rounds")
            if name in RATIOS and any(value is None or value <= 0 for value in values):
                raise ValueError(f"round_figures.{name} must be above 0")
        if self.other_cores is not None and len(self.other_cores) != self.rounds:
            raise ValueError(f"other_cores has {len(self.other_cores)} values for {self.rounds} rounds")
        if any(not 1 <= number <= self.rounds for number in self.disturbed_rounds):
            raise ValueError("disturbed_rounds has a number that is no round")
        return self


class ResultMeta(Strict, extra="allow"):
    """The entries of `meta` that are read; the others document the measurement."""

    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = 1
    threads: Annotated[int, Field(ge=1)] | None = None
    omp_wait_policy: str = ""
    vllm_tables: dict[str, list[Annotated[list[int], Field(min_length=3, max_length=3)]]] = {}
    vllm_tables_tuned_on: dict[str, list[str]] = {}


class ResultFile(Strict):
    """The document."""

    meta: ResultMeta
    rows: Annotated[list[ResultRow], Field(max_length=MAX_ROWS)]

    @model_validator(mode="after")
    def _check_alike(self) -> ResultFile:
        found: dict[tuple[object, ...], ResultRow] = {}
        seen = set[tuple[object, ...]]()
        for row in self.rows:
            configuration = (row.workload, row.drafter, row.concurrency, row.request_rate)
            first = found.setdefault(configuration, row)
            where = f"{row.workload}/{row.drafter}, {row.policy}"
            if (*configuration, row.policy, row.emit) in seen:
                raise ValueError(f"{where}: has two rows")
            seen.add((*configuration, row.policy, row.emit))
            if (row.rounds, row.disturbed_rounds) != (first.rounds, first.disturbed_rounds):
                raise ValueError(f"{where}: has other rounds than {first.policy}")
        return self
