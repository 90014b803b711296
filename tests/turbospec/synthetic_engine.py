"""A continuous-batching engine with made-up models: step times and acceptance follow known laws, so that a policy's
decisions can be judged in milliseconds of test time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from turbospec.controller import Controller, GuardConfig
from turbospec.interface import Phase, Policy, StepOutcome, StepPlan, StepView

MAX_DRAFT = 15
PROMPT_TOKENS = 120

Guess = Callable[[np.random.Generator, int], tuple[float, float]]
"""From a request's number: how likely its next draft token is accepted, and how confident the drafter is of it."""

CONFIDENCES = np.array([0.25, 0.45, 0.65, 0.9, 0.99])
SHARES = np.array([0.12, 0.15, 0.18, 0.25, 0.30])


def drafter(quality: float) -> Guess:
    """A drafter whose confidence is telling: acceptance is `quality` times it (mean 0.72 · quality)."""

    def guess(rng: np.random.Generator, request: int) -> tuple[float, float]:
        confidence = float(rng.choice(CONFIDENCES, p=SHARES))
        return quality * confidence, confidence

    return guess


def hopeless(rng: np.random.Generator, request: int) -> tuple[float, float]:
    """A confident drafter that is never right."""
    return 0.0, float(rng.choice(CONFIDENCES, p=SHARES))


def by_turns(*guesses: Guess) -> Guess:
    """Requests of different kinds, in turn."""
    return lambda rng, request: guesses[request % len(guesses)](rng, request)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: what a step costs, like a small model on a CPU."""

    fixed: float = 5e-4
    verify: float = 7.3e-3
    verify_token: float = 5e-5
    draft_start: float = 3e-4
    draft_pass: float = 1.3e-3
    draft_row: float = 2e-5
    catch_up_token: float = 8e-6
    noise: float = 0.05


@dataclass(slots=True)
class Running:
    number: int
    output_tokens: int
    arrived: float
    computed: int = 0
    emitted: int = 0
    stale: int = PROMPT_TOKENS
    phase: Phase = Phase.PREFILL


@dataclass(slots=True)
class Step:
    view: StepView
    plan: StepPlan
    outcome: StepOutcome
    waiting: bool
    """Whether more requests were waiting: a run's end, when the batch drains, says little of a server."""


@dataclass(slots=True)
class Served:
    """What came of a run."""

    steps: list[Step] = field(default_factory=list[Step])
    first_tokens: list[float] = field(default_factory=list[float])
    """Seconds from arrival to first token, one a request."""
    per_token: list[float] = field(default_factory=list[float])
    """Seconds a token after the first, one a request."""

    @property
    def tokens_per_second(self) -> float:
        """With a full batch."""
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
    """Serves requests with a policy, `concurrency` at a time. Step and request numbers go on from run to run."""

    concurrency: int
    times: Times = Times()
    confidence: bool = True
    """Whether the drafter reports its confidence; without it no gate is consulted either."""
    parallel: bool = False
    step: int = 0
    requests: int = 0
    now: float = 0.0

    def serve(self, policy: Policy, guess: Guess, requests: int, seed: int = 0) -> Served:
        rng = np.random.default_rng(seed)
        controller = Controller(policy, guard=GuardConfig(max_decision_seconds=60.0))
        served = Served()
        waiting = deque(range(self.requests, self.requests + requests))
        self.requests += requests
        running: list[Running] = []
        while waiting or running:
            while waiting and len(running) < self.concurrency:
                number = waiting.popleft()
                running.append(Running(number, output_tokens=40 + number * 7919 % 80, arrived=self.now))
            view = self._view(running)
            plan = controller.plan(view)
            outcome = self._run(view, plan, running, guess, rng)
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
            drafter_lag_tokens=column([request.stale for request in running]),
            class_ids=np.zeros(len(running), np.int64),
            draft_limits=np.where(phase == Phase.PREFILL, 0, np.clip(left - 1, 0, MAX_DRAFT)),
            max_draft=MAX_DRAFT,
            prefill_tokens=PROMPT_TOKENS * sum(request.phase == Phase.PREFILL for request in running),
            parallel_drafter=self.parallel,
        )

    def _run(
        self, view: StepView, plan: StepPlan, running: list[Running], guess: Guess, rng: np.random.Generator
    ) -> StepOutcome:
        size, lengths, times = view.size, plan.draft_lengths, self.times
        drafted, proposed, accepted = np.zeros((3, size), np.int64)
        right = np.ones(size, np.bool_)
        confidences = np.full((size, MAX_DRAFT), np.nan)
        rows = np.flatnonzero(lengths)
        catch_up = sum(running[row].stale for row in rows)
        draft_rows: list[int] = []
        while len(rows):
            draft_rows.append(len(rows))
            odds, confidence = np.array([guess(rng, running[row].number) for row in rows]).T
            confidences[rows, proposed[rows]] = confidence
            proposed[rows] += 1
            keep, more = np.ones(len(rows), np.bool_), proposed[rows] < lengths[rows]
            if plan.gate is not None and self.confidence:
                keep, wanted = plan.gate.advance(rows, confidence)
                more &= keep & wanted
            drafted[rows] += keep
            right[rows] &= rng.random(len(rows)) < odds
            accepted[rows] += right[rows] & keep
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
                request.computed, request.phase = PROMPT_TOKENS, Phase.FIRST_DECODE
                served.first_tokens.append(self.now - request.arrived)
                request.arrived = self.now
                continue
            request.phase = Phase.DECODE
            request.computed += int(outcome.emitted[row])
            request.stale = 0 if outcome.drafted[row] else request.stale + 1
            if request.emitted >= request.output_tokens:
                served.per_token.append((self.now - request.arrived) / (request.output_tokens - 1))

    def _noise(self, rng: np.random.Generator) -> float:
        return float(rng.lognormal(0.0, self.times.noise))
