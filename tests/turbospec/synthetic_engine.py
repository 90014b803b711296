"""A continuous-batching engine without models: step times and acceptance follow known laws, so that a policy can be
checked within milliseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from turbospec.controller import Controller, GuardConfig
from turbospec.interface import Phase, Policy, StepOutcome, StepPlan, StepView

MAX_DRAFT = 15

AcceptanceLaw = Callable[[np.random.Generator, int], tuple[float, float]]
"""From a request's number: acceptance probability of its next draft token, and the drafter's confidence."""

CONFIDENCES = np.array([0.25, 0.45, 0.65, 0.9, 0.99])
SHARES = np.array([0.12, 0.15, 0.18, 0.25, 0.30])
"""Probability of each confidence."""


def drafter(quality: float) -> AcceptanceLaw:
    """A drafter whose acceptance is `quality` times its confidence (mean 0.72 · quality)."""

    def law(rng: np.random.Generator, request: int) -> tuple[float, float]:
        confidence = float(rng.choice(CONFIDENCES, p=SHARES))
        return quality * confidence, confidence

    return law


def never_accepted(rng: np.random.Generator, request: int) -> tuple[float, float]:
    """A confident drafter whose tokens are never accepted."""
    return 0.0, float(rng.choice(CONFIDENCES, p=SHARES))


def alternating(*laws: AcceptanceLaw) -> AcceptanceLaw:
    """Consecutive requests follow the laws in rotation."""
    return lambda rng, request: laws[request % len(laws)](rng, request)


@dataclass(frozen=True, slots=True)
class Times:
    """Coefficients of step times in seconds, like a small model's on a CPU."""

    fixed: float = 5e-4
    verify: float = 7.3e-3
    verify_token: float = 5e-5
    draft_start: float = 3e-4
    draft_pass: float = 1.3e-3
    draft_row: float = 2e-5
    catch_up_token: float = 8e-6
    noise: float = 0.05
    """Standard deviation of the logarithm of every measured time."""


@dataclass(slots=True)
class Running:
    """A running request."""

    number: int
    output_tokens: int
    arrived: float
    lag: int
    computed: int = 0
    emitted: int = 0
    phase: Phase = Phase.PREFILL


@dataclass(slots=True)
class Step:
    view: StepView
    plan: StepPlan
    outcome: StepOutcome
    waiting: bool
    """Whether more requests were waiting. While the batch drains at the end of a run, throughput is not meaningful."""


@dataclass(slots=True)
class Served:
    """Result of a run."""

    steps: list[Step] = field(default_factory=list[Step])
    first_tokens: list[float] = field(default_factory=list[float])
    """TTFT of each request, seconds."""
    per_token: list[float] = field(default_factory=list[float])
    """TPOT of each request, seconds."""

    @property
    def tokens_per_second(self) -> float:
        """Throughput with a full batch."""
        full = [step.outcome for step in self.steps if step.waiting]
        return sum(int(outcome.emitted.sum()) for outcome in full) / sum(outcome.step_seconds for outcome in full)

    @property
    def seconds(self) -> float:
        return sum(step.outcome.step_seconds for step in self.steps)

    @property
    def draft_seconds(self) -> float:
        return sum(step.outcome.draft_seconds for step in self.steps)

    @property
    def mean_draft_length(self) -> float:
        decoding = sum(int((step.view.phase != Phase.PREFILL).sum()) for step in self.steps)
        return sum(int(step.outcome.drafted.sum()) for step in self.steps) / decoding


@dataclass(slots=True)
class SyntheticEngine:
    """Serves requests with a policy, `concurrency` at a time. Step and request numbers continue from run to run."""

    concurrency: int
    times: Times = Times()
    confidence: bool = True
    """Whether the drafter reports its confidence; without it gates are ignored."""
    parallel: bool = False
    prompt_tokens: int = 120
    step: int = 0
    requests: int = 0
    now: float = 0.0

    def serve(self, policy: Policy, law: AcceptanceLaw, requests: int, seed: int = 0) -> Served:
        """Serve so many requests to completion."""
        rng = np.random.default_rng(seed)
        controller = Controller(policy, guard=GuardConfig(max_decision_seconds=60.0))
        served = Served()
        waiting = deque(range(self.requests, self.requests + requests))
        self.requests += requests
        running: list[Running] = []
        while waiting or running:
            while waiting and len(running) < self.concurrency:
                number = waiting.popleft()
                output = 40 + number * 7919 % 80
                running.append(Running(number, output, self.now, self.prompt_tokens))
            view = self._view(running)
            plan = controller.plan(view)
            outcome = self._run(view, plan, running, law, rng)
            self.now += outcome.step_seconds
            self.step += 1
            controller.observe(outcome)
            served.steps.append(Step(view, plan, outcome, bool(waiting)))
            self._emit(running, outcome, served)
            running = [request for request in running if request.emitted < request.output_tokens]
        return served

    def _view(self, running: list[Running]) -> StepView:
        def column(values: list[int]) -> np.ndarray:
            return np.array(values, np.int64)

        left = column([request.output_tokens - request.emitted for request in running])
        phase = column([request.phase for request in running])
        return StepView(
            step=self.step,
            now=self.now,
            request_ids=column([request.number for request in running]),
            phase=phase,
            context_tokens=column([request.computed for request in running]),
            emitted_tokens=column([request.emitted for request in running]),
            tokens_left=left,
            drafter_lag_tokens=column([request.lag for request in running]),
            class_ids=np.zeros(len(running), np.int64),
            draft_limits=np.where(phase == Phase.PREFILL, 0, np.clip(left - 1, 0, MAX_DRAFT)),
            max_draft=MAX_DRAFT,
            prefill_tokens=self.prompt_tokens * sum(request.phase == Phase.PREFILL for request in running),
            parallel_drafter=self.parallel,
            calls_gate=self.confidence and not self.parallel,
        )

    def _run(
        self, view: StepView, plan: StepPlan, running: list[Running], law: AcceptanceLaw, rng: np.random.Generator
    ) -> StepOutcome:
        size, lengths, times = view.size, plan.draft_lengths, self.times
        drafted, proposed, accepted = np.zeros((3, size), np.int64)
        alive = np.ones(size, np.bool_)
        confidences = np.full((size, MAX_DRAFT), np.nan)
        rows = np.flatnonzero(lengths)
        catch_up = sum(running[row].lag for row in rows)
        draft_rows: list[int] = []
        while len(rows):
            draft_rows.append(len(rows))
            acceptance, confidence = np.array([law(rng, running[row].number) for row in rows]).T
            confidences[rows, proposed[rows]] = confidence
            proposed[rows] += 1
            keep, more = np.ones(len(rows), np.bool_), proposed[rows] < lengths[rows]
            if plan.gate is not None and view.calls_gate:
                keep, wanted = plan.gate.advance(rows, confidence)
                more &= keep & wanted
            drafted[rows] += keep
            alive[rows] &= rng.random(len(rows)) < acceptance
            accepted[rows] += alive[rows] & keep
            rows = rows[more]
        passes = draft_rows[:1] if self.parallel else draft_rows
        decoding = view.phase != Phase.PREFILL
        tokens = int((1 + drafted)[decoding].sum()) + view.prefill_tokens
        draft_seconds = 0.0
        if passes:
            draft_seconds = times.draft_start + times.draft_pass * len(passes) + times.draft_row * sum(passes)
            draft_seconds = (draft_seconds + times.catch_up_token * catch_up) * self._noise(rng)
        verify_seconds = (times.verify + times.verify_token * tokens) * self._noise(rng)
        return StepOutcome(
            step=view.step,
            request_ids=view.request_ids,
            drafted=drafted,
            accepted=accepted,
            emitted=np.where(decoding, accepted + 1, 1),
            truncated=np.zeros(size, np.bool_),
            proposed=proposed,
            confidence=confidences if self.confidence and passes else None,
            draft_rows=np.array(passes, np.int64),
            catch_up_tokens=catch_up,
            tokens_batched=tokens,
            padded_tokens=tokens,
            prefill_tokens=view.prefill_tokens,
            context_tokens=int(view.context_tokens.sum()),
            draft_seconds=draft_seconds,
            verify_seconds=verify_seconds,
            step_seconds=draft_seconds + verify_seconds + times.fixed,
        )

    def _emit(self, running: list[Running], outcome: StepOutcome, served: Served) -> None:
        for row, request in enumerate(running):
            request.emitted += int(outcome.emitted[row])
            if request.phase == Phase.PREFILL:
                request.computed, request.phase = self.prompt_tokens, Phase.FIRST_DECODE
                served.first_tokens.append(self.now - request.arrived)
                request.arrived = self.now
                continue
            request.phase = Phase.DECODE
            request.computed += int(outcome.emitted[row])
            request.lag = 0 if outcome.drafted[row] else request.lag + 1
            if request.emitted >= request.output_tokens:
                served.per_token.append((self.now - request.arrived) / (request.output_tokens - 1))

    def _noise(self, rng: np.random.Generator) -> float:
        return float(rng.lognormal(0.0, self.times.noise))
