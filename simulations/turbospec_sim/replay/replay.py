"""Estimates what policies would have achieved on a recorded run, with bounds where the trace cannot tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turbospec.controller import GuardConfig
from turbospec.interface import IntArray, Policy, StepOutcome, StepPlan, StepView
from turbospec.models.logistic import MAX_CLASSES
from turbospec.models.profile import LatencySample, Profile
from turbospec.observability.trace import TraceStep
from turbospec.policy import PolicyConfig
from turbospec.policy.registered import build_policy
from turbospec_sim.acceptance import AcceptanceTables
from turbospec_sim.cost import RUN_SECONDS, STEP_SECONDS, Cost
from turbospec_sim.profile_fit import first_pass_seconds, fitted_coefficients, predicted_seconds
from turbospec_sim.records import CLASS, OFFERED
from turbospec_sim.replay.recording import Recording, record
from turbospec_sim.replay.reused_plans import with_reused_plan_steps
from turbospec_sim.replay.server import drafter_of, server_of
from turbospec_sim.replay.tokens import KnownTokens, count_judged
from turbospec_sim.run import serve
from turbospec_sim.scenario import Drafter, Server, engine_record
from turbospec_sim.state import EngineState
from turbospec_sim.step_time import StepTimes
from turbospec_sim.workload.acceptance import MAX_POSITIONS

PESSIMISTIC, OPTIMISTIC = "pessimistic", "optimistic"
"""Bounds: every draft token that the trace cannot judge is rejected, or accepted."""

Row = dict[str, Any]


class RecordedPlans:
    """Repeats the recorded drafts: each draft length at the output position at which it was recorded, else 0."""

    def __init__(self, tokens: KnownTokens) -> None:
        self._tokens = tokens

    def plan(self, view: StepView) -> StepPlan:
        at = self._tokens.lines[view.request_ids, 0] + view.emitted_tokens
        return StepPlan(np.minimum(self._tokens.drafted[at], view.draft_limits), reason="as recorded")

    def observe(self, outcome: StepOutcome) -> None:
        """Recorded plans do not learn."""


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """Errors of the replay's step times against the trace's own steps."""

    median_error: float
    """Median absolute relative error of a step."""
    correction: float
    """Factor on all times that corrects the total time of the trace's steps; 1 with a profile."""
    total_error: float
    """Predicted over measured time of all steps, minus 1, after the correction."""
    passes: tuple[int, ...]
    """Numbers of drafter passes in measured steps; the time of other numbers is extrapolated."""


class _Bounds:
    """Listener that counts which draft tokens the trace can judge, and which step times are extrapolated."""

    def __init__(self, tokens: KnownTokens, passes: Sequence[int], seconds_between: float) -> None:
        self._tokens, self._passes, self._between = tokens, frozenset(passes), seconds_between
        self.judged = self.drafted = self.emitted = 0
        self.seconds = self.extrapolated = 0.0

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        tokens = self._tokens
        judged, drafted = count_judged(view.request_ids, view.emitted_tokens, outcome.drafted, *tokens)
        self.judged += judged
        self.drafted += drafted
        self.emitted += int(outcome.emitted.sum())
        seconds = outcome.step_seconds - self._between
        self.seconds += seconds
        if len(outcome.draft_rows) not in self._passes:
            self.extrapolated += seconds


class Replay:
    """A recorded run, to be replayed under policies.

    Args:
        steps: the trace's steps, of one run.
        profile: step times measured on the engine, for the replay and its policies; None: fitted to the trace.
        same_at_any_position: whether acceptance of a token does not depend on its draft position; see `tokens`.
        concurrency: clients of a closed loop that sends the requests; None: requests arrive when they did.

    Raises:
        UserError: the steps are of several runs, took no time, or emitted nothing.
    """

    def __init__(
        self,
        steps: Sequence[TraceStep],
        *,
        profile: Profile | None = None,
        same_at_any_position: bool = False,
        concurrency: int | None = None,
    ) -> None:
        steps = with_reused_plan_steps(steps)
        self.recording: Recording = record(steps)
        self.server: Server = server_of(steps, self.recording)
        self.drafter: Drafter = drafter_of(steps)
        self.tokens = self.recording.tokens.same_at_any_position() if same_at_any_position else self.recording.tokens
        self.recorded: Row = _recorded(steps, self.recording)
        self.longest_draft = max(max(step.drafted, default=0) for step in steps)
        """In the trace, tokens; a replay cuts it to the drafter's `max_draft`."""
        self._profile = profile
        self._steps = len(steps)
        self._concurrency = concurrency
        self._times, self.fit = _step_times(self.recording, self.drafter, profile)

    @property
    def cost(self) -> Cost:
        """Cost of one run: about as many steps as were recorded, or as few as the requests' tokens need."""
        recording, server = self.recording, self.server
        least = int(recording.prompt_tokens.sum()) / server.max_num_batched_tokens + int(recording.output_tokens.max())
        return Cost(1, recording.size, RUN_SECONDS + STEP_SECONDS * max(self._steps, least))

    def as_recorded(self) -> Row:
        """Figures of the recorded drafts, simulated: their difference from `recorded` is the replay's own error."""
        return self._run("as recorded", RecordedPlans(self.tokens), GuardConfig(), PESSIMISTIC)

    def rows(self, name: str, config: PolicyConfig) -> tuple[Row, Row]:
        """A policy's pessimistic and optimistic figures.

        Raises:
            UserError: the policy needs a profile.
        """
        pessimistic, optimistic = (
            self._run(name, build_policy(config, self._profile, 0), config.guard, bound)
            for bound in (PESSIMISTIC, OPTIMISTIC)
        )
        return pessimistic, optimistic

    def _run(self, name: str, policy: Policy, guard: GuardConfig, bound: str) -> Row:
        state = self._state(self.tokens.certain if bound == PESSIMISTIC else self.tokens.possible)
        bounds = _Bounds(self.tokens, self.fit.passes, self.recording.seconds_between)
        figures, guard_trips = serve(state, policy, guard, (bounds,))
        return {
            "policy": name,
            "bound": bound,
            **figures,
            "tokens_per_step_second": bounds.emitted / max(bounds.seconds, 1e-9),
            "judged_share": bounds.judged / bounds.drafted if bounds.drafted else 1.0,
            "extrapolated_time_share": bounds.extrapolated / max(bounds.seconds, 1e-9),
            "guard_trips": guard_trips,
        }

    def _state(self, positions: IntArray) -> EngineState:
        """An engine before the first arrival; each token is accepted at its first `positions` (tokens,) of a draft."""
        recording = self.recording
        offered = np.zeros(recording.size, OFFERED)
        offered["ttft"] = offered["latency"] = math.nan
        if self._concurrency is None:
            offered["sent"] = recording.arrivals
        for name in ("prompt_tokens", "output_tokens"):
            offered[name] = getattr(recording, name)
        offered["class_id"] = recording.class_ids
        classes = np.zeros(MAX_CLASSES, CLASS)
        classes["begin"] = classes["end"] = classes["until"] = math.inf
        classes["told_class"] = np.arange(MAX_CLASSES)
        classes["lines"], classes["by_reach"] = recording.size, True
        if np.mean(recording.max_tokens > recording.output_tokens) > 0.5:
            # Most outputs end before their limit: the engine did not know their lengths.
            classes["max_tokens"] = recording.max_tokens.max()
        rates = np.zeros((MAX_CLASSES, 3, MAX_POSITIONS))
        return EngineState(
            engine=engine_record(self.server, self.drafter),
            offered=offered,
            acceptance=AcceptanceTables(classes, rates, self.tokens.lines, positions.astype(np.float64)),
            times=self._times,
            concurrency=self._concurrency,
        )


def _step_times(recording: Recording, drafter: Drafter, profile: Profile | None) -> tuple[StepTimes, StepTimeFit]:
    measured = np.array([sample.step_seconds for sample in recording.samples])
    samples = profile.samples if profile else recording.samples
    curve, coefficients = fitted_coefficients(samples)
    first_pass = np.zeros(len(recording.samples))
    if drafter.first_pass_every_step:
        # It is part of the measured step, and the simulation adds it to the target's pass.
        seconds = first_pass_seconds(samples, coefficients).tolist()
        alone = [_without(sample, each) for sample, each in zip(samples, seconds, strict=True)]
        curve, coefficients = fitted_coefficients(alone)
        first_pass = first_pass_seconds(recording.samples, coefficients)
    predicted = predicted_seconds(recording.samples, curve, coefficients) + first_pass
    # The fit makes the mean relative error 0, but a run's duration depends on the sum.
    factor = 1.0 if profile or predicted.sum() <= 0.0 else float(measured.sum() / predicted.sum())
    curve[1] *= factor
    predicted *= factor
    fit = StepTimeFit(
        median_error=float(np.median(np.abs(predicted / measured - 1.0))),
        correction=factor,
        total_error=float(predicted.sum() / measured.sum() - 1.0),
        passes=tuple(sorted({0} | {len(sample.draft_rows) for sample in samples if sample.shows_drafting})),
    )
    scaled: dict[str, Any] = {name: value * factor for name, value in coefficients.items()}
    if drafter.kind == "parallel" and drafter.batch:
        # The measured rows of a pass are requests, the simulated ones the tokens of the longest possible drafts.
        scaled["draft_row"] /= drafter.max_draft
    # The simulation has no time between steps: it counts as host time.
    scaled["host"] += recording.seconds_between
    return StepTimes(curve, **scaled), fit


def _without(sample: LatencySample, seconds: float) -> LatencySample:
    """The sample without so many seconds of its target's pass, of which a tenth at least is left."""
    seconds = min(seconds, 0.9 * sample.verify_seconds)
    return replace(sample, verify_seconds=sample.verify_seconds - seconds, step_seconds=sample.step_seconds - seconds)


def _recorded(steps: Sequence[TraceStep], recording: Recording) -> Row:
    """Figures of the trace itself, by the names of a replay's figures."""
    seconds = sum(step.step_seconds for step in steps)
    drafted, accepted = sum(sum(step.drafted) for step in steps), sum(sum(step.accepted) for step in steps)
    drafts = sum(length > 0 for step in steps for length in step.drafted)
    decoding = sum(phase > 0 for step in steps for phase in step.phase)
    tokens = int(recording.output_tokens.sum())
    per_token = recording.per_token[np.isfinite(recording.per_token)] * 1e3
    return {
        "policy": "recorded",
        "bound": None,
        "duration": recording.duration,
        "completed": recording.size,
        "total_output_tokens": tokens,
        "output_throughput": tokens / max(recording.duration, 1e-9),
        "tokens_per_step_second": sum(sum(step.emitted) for step in steps) / seconds,
        "mean_tpot_ms": float(per_token.mean()) if len(per_token) else math.nan,
        "p99_tpot_ms": float(np.percentile(per_token, 99)) if len(per_token) else math.nan,
        "mean_draft_length": drafted / max(decoding, 1),
        "mean_accepted_length": 1.0 + accepted / max(drafts, 1),
        "judged_share": None,
        "extrapolated_time_share": None,
    }
