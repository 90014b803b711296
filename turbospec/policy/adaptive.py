"""The closed loop: exact plans from what acceptance and latency were learnt to be."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from turbospec.acceptance import AcceptanceModel, survival
from turbospec.compiled import compiled
from turbospec.confidence import ConfidenceCalibration, SurvivalGate
from turbospec.latency import LatencyModel
from turbospec.planner import StepCosts, plan_draft_lengths
from turbospec.policy.config import PolicyConfig
from turbospec.price import TimePrice, best_rate
from turbospec.probing import PlainSteps, ProbeBudget, seconds_lost
from turbospec.profile import Profile
from turbospec.stopping import Start, StoppingValues, choose_start
from turbospec.types import FloatArray, IntArray, Phase, StepController, StepOutcome, StepPlan, StepView

CATCH_UP_HORIZON = 64
"""Tokens over which a request's catching up is spread in the plan: what it buys is not spent in one step."""
PROBE_DRAFT_LENGTH = 1
EXPLORATION = (0, 2, 0, 5, 1, 0, 3, 4, 0, 2)
"""Draft lengths of the first steps where no profile says what drafting costs."""
MAX_REST = 8
"""Most steps that a policy which found only hopeless requests, several times in a row, goes without looking again."""
REST_BELOW = 0.25
"""Acceptance of the first token that no request may reach for a policy to rest."""
MAX_OPEN_PLANS = 64
"""Plans that may wait for their outcomes; an engine that drops a step never reports it."""
MIN_CONFIDENCE_OBSERVATIONS = 64
"""Verified tokens after which the drafter's confidence is trusted to end drafts."""


class AdaptiveConfig(PolicyConfig):
    """TurboSpec's own policy."""

    policy: Literal["adaptive"]
    max_draft: int | None = Field(default=None, ge=0, description="Longest draft; none: the engine's maximum.")
    probe_share: float = Field(
        default=0.01,
        ge=0,
        le=0.2,
        description="Share of step time for probes: drafts while drafting is off, plain steps while it is on.",
    )
    first_token_weight: float = Field(
        default=8.0,
        ge=0,
        description="How much more a second is worth to a request without its first token than to one that decodes.",
    )
    tpot_slo_ms: float | None = Field(
        default=None, gt=0, description="Time per output token that no plan may push a request beyond."
    )
    use_confidence: bool = Field(
        default=True, description="End drafts early on the drafter's confidence, where the engine reports it."
    )

    def build(self, profile: Profile | None, seed: int) -> StepController:
        del seed  # nothing here is drawn
        compile_kernels()
        return AdaptivePolicy(self, LatencyModel.fit(profile.samples) if profile else None)


@functools.cache
def compile_kernels() -> None:
    """Compile the hot path before the first step has to wait for it (seconds on a first run, then cached on disk)."""
    policy = AdaptivePolicy(AdaptiveConfig(version=1, policy="adaptive"), LatencyModel())
    policy.latency.fitted = True
    ones = np.ones(2, np.int64)
    for step in range(3):
        if policy.calibration is not None and step == 2:
            policy.calibration.observations = MIN_CONFIDENCE_OBSERVATIONS
        view = StepView(
            step=step,
            now=float(step),
            request_ids=np.arange(2),
            phase=ones * Phase.DECODE,
            context_tokens=ones * 100,
            emitted_tokens=ones,
            tokens_left=ones * 50,
            stale_tokens=ones * 2,
            class_ids=ones * 0,
            draft_limits=ones * 4,
            max_draft=4,
        )
        policy.plan(view)
        policy.observe(
            StepOutcome(
                step=step,
                request_ids=view.request_ids,
                drafted=ones,
                accepted=ones,
                emitted=ones + 1,
                truncated=np.zeros(2, np.bool_),
                proposed=ones,
                confidence=np.full((2, 1), 0.5),
                draft_rows=np.array([2]),
                tokens_batched=4,
                draft_seconds=1e-3,
                verify_seconds=1e-3,
                step_seconds=3e-3,
            )
        )
    calibration = ConfidenceCalibration(2)
    gate = SurvivalGate(
        calibration, calibration.table(), np.arange(2), np.full((2, 4), 0.5), ones * 4,
        pass_price=0.1, row_price=0.0, verify_price=0.0,
    )  # fmt: skip
    gate.advance(np.arange(2), np.full(2, 0.5))


class _Batch(NamedTuple):
    """What plans need of a batch as a whole."""

    decoding: int
    """Requests past their prompt."""
    prefilling: int
    starting: int
    """Requests whose first token was the last thing that happened to them."""
    context_tokens: int
    stale_tokens: int
    draft_room: int
    """Σ of the draft limits."""


@compiled
def _summarise(
    phase: IntArray, context_tokens: IntArray, stale_tokens: IntArray, limits: IntArray
) -> tuple[int, int, int, int, int, int]:
    prefilling, starting, context, stale, room = 0, 0, 0, 0, 0
    for i in range(len(phase)):
        prefilling += phase[i] == Phase.PREFILL.value
        starting += phase[i] == Phase.FIRST_DECODE.value
        context += context_tokens[i]
        stale += stale_tokens[i]
        room += limits[i]
    return len(phase) - prefilling, prefilling, starting, context, stale, room


@compiled
def _verify_costs(verify: FloatArray, decoding: int) -> tuple[float, float]:
    """Seconds that draft tokens in the target's pass cost once, and those that each of them costs.

    A pass over two tokens for each request may cost much more than one over a single token each, and one over three
    hardly more than that: the line runs through two and four tokens a request.
    """
    room = len(verify) - 1
    few, many = min(decoding, room), min(3 * decoding, room)
    if many == few:
        return 0.0, (verify[few] - verify[0]) / few
    each = (verify[many] - verify[few]) / (many - few)
    jump = verify[few] - verify[0] - each * few
    if jump < 0.0:
        return 0.0, (verify[many] - verify[0]) / many
    return jump, each


@dataclass(slots=True)
class _Open:
    """What `observe` needs of the plan it closes."""

    rows: IntArray
    class_ids: IntArray
    decoding: int
    probe_price: float | None = None
    """Tokens that a second was worth; None where the step is no probe."""
    probe_expected: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Acceptance expected of each row of the probe."""


class AdaptivePolicy:
    """Plans each step exactly under learnt acceptance, learnt latency and a learnt price of time.

    Args:
        config: its settings.
        latency: a fitted model; None to learn one from the first steps.
    """

    def __init__(self, config: AdaptiveConfig, latency: LatencyModel | None = None) -> None:
        self.config = config
        self.latency = latency or LatencyModel()
        self.price = TimePrice()
        self.probes = ProbeBudget(config.probe_share)
        self.plain_steps = PlainSteps(config.probe_share)
        self.acceptance: AcceptanceModel | None = None
        self.calibration: ConfidenceCalibration | None = None
        self._stopping: StoppingValues | None = None
        self._open: dict[int, _Open] = {}
        self._explored = 0
        self._offs = 0
        """Times in a row that nothing was worth drafting."""
        self._rest = 0
        """Steps left to go without looking again."""
        self._plans = 0
        self._first_token_at: FloatArray = np.zeros(0)

    def plan(self, view: StepView) -> StepPlan:
        self._plans += 1
        if self._rest > 0:
            self._rest -= 1
            return StepPlan(np.zeros(view.size, np.int64), reason="no draft paid a few steps ago")
        acceptance, calibration = self._models(view.max_draft)
        rows = self._rows(view)
        limits = view.draft_limits
        if self.config.max_draft is not None:
            limits = np.minimum(limits, self.config.max_draft)
        batch = _Batch(*_summarise(view.phase, view.context_tokens, view.stale_tokens, limits))
        opened = self._open[view.step] = _Open(rows, view.class_ids, batch.decoding)
        if len(self._open) > MAX_OPEN_PLANS:
            del self._open[next(iter(self._open))]
        if batch.draft_room == 0:
            return self._nothing_to_draft(view, batch)
        if not self.latency.calibrated:
            return self._explore(limits)

        conditional = acceptance.conditional(rows, view.class_ids, limits)
        costs = self._costs(view, batch)
        price = self._price(view, batch, conditional, costs)
        charges: FloatArray | None = None
        spread: FloatArray | None = None
        if batch.stale_tokens:
            charges = view.stale_tokens.astype(np.float64) * self.latency.catch_up_token_seconds
            spread = charges / np.clip(view.tokens_left, 1, CATCH_UP_HORIZON)
        max_seconds = self._max_seconds(view, rows, costs)
        gated = self.config.use_confidence and calibration.observations >= MIN_CONFIDENCE_OBSERVATIONS
        if gated and not view.parallel_drafter and math.isinf(max_seconds):
            plan = self._gated(rows, limits, batch, conditional, costs, charges, spread, price)
        else:
            plan = self._exact(batch, survival(conditional), costs, charges, spread, price, max_seconds)
        self._offs = self._offs + 1 if plan is None else 0
        if plan is None:
            return self._off(view, rows, limits, conditional, costs, charges, opened, price)
        seconds = float(costs.verify[0])
        worth = (plan.predicted_tokens - batch.decoding) / price - (plan.predicted_seconds - seconds)
        if view.prefill_tokens == 0 and self.plain_steps.is_due(batch.decoding, self._plans, worth):
            return StepPlan(limits * 0, batch.decoding, seconds, "a plain step, to compare with")
        return plan

    def _exact(
        self,
        batch: _Batch,
        gains: FloatArray,
        costs: StepCosts,
        charges: FloatArray | None,
        spread: FloatArray | None,
        price: float,
        max_seconds: float,
    ) -> StepPlan | None:
        """The best draft lengths, fixed before drafting; None where nothing pays."""
        solution = plan_draft_lengths(gains, costs, price, charges=spread, max_seconds=max_seconds)
        lengths = solution.draft_lengths
        total = int(lengths.sum())
        if total == 0:
            return None
        catch_up = float(charges[lengths > 0].sum()) if charges is not None else 0.0
        return StepPlan(
            lengths,
            predicted_tokens=batch.decoding + solution.gain,
            predicted_seconds=costs.seconds(lengths) + catch_up,
            reason=f"{total} draft tokens: expect {solution.gain:.2f} more from {batch.decoding} requests "
            f"at {price:.0f} tok/s",
        )

    def _gated(
        self,
        rows: IntArray,
        limits: IntArray,
        batch: _Batch,
        conditional: FloatArray,
        costs: StepCosts,
        charges: FloatArray | None,
        spread: FloatArray | None,
        price: float,
    ) -> StepPlan | None:
        """The requests for which starting pays, with a gate that ends each draft; None where nothing pays."""
        assert self.calibration is not None
        assert self._stopping is not None
        jump, each = _verify_costs(costs.verify, batch.decoding)
        pass_price, row_price, verify_price = price * costs.draft_pass, price * costs.draft_token, price * each
        table, mean, gain, net = self._stopping.at(row_price, verify_price)
        charged = np.zeros(len(rows)) if spread is None else price * spread
        start_price = price * (costs.draft_start + jump)
        start = Start(*choose_start(mean, gain, net, conditional[:, 0], charged, limits, pass_price, start_price))
        count = int(start.drafting.sum())
        if count == 0:
            return None
        seconds = float(costs.verify[0]) + (start.gain - start.surplus) / price
        if charges is not None and spread is not None:
            seconds += float((charges - spread)[start.drafting].sum())
        return StepPlan(
            limits * start.drafting,
            predicted_tokens=batch.decoding + start.gain,
            predicted_seconds=seconds,
            reason=f"drafting for {count} of {batch.decoding} requests while confident: expect {start.gain:.2f} more "
            f"at {price:.0f} tok/s",
            gate=SurvivalGate(
                self.calibration,
                table,
                rows,
                conditional,
                limits,
                pass_price,
                row_price + verify_price,
                verify_price,
            ),
        )

    def observe(self, outcome: StepOutcome) -> None:
        self.probes.earn(outcome.step_seconds)
        self.plain_steps.earn(outcome.step_seconds)
        opened = self._open.pop(outcome.step, None)
        if opened is None:
            return
        self.latency.learn(outcome, len(opened.rows))
        if len(outcome.draft_rows) or outcome.drafted.any():
            self._learn_acceptance(opened, outcome)
        elif outcome.prefill_tokens == 0 and opened.decoding > 0:
            self.plain_steps.learn(opened.decoding, self._plans)
        if opened.probe_price is not None:
            gain = int(outcome.accepted.sum()) / opened.probe_price
            self.probes.spend(float(seconds_lost(outcome.draft_seconds, gain)))
            if outcome.drafted.any():
                self.probes.learn(int((outcome.accepted > 0).sum()), opened.probe_expected)
        elif outcome.prefill_tokens == 0 and opened.decoding > 0:
            self.price.add(opened.decoding, int(outcome.emitted.sum()), outcome.step_seconds)

    def _learn_acceptance(self, opened: _Open, outcome: StepOutcome) -> None:
        assert self.acceptance is not None
        assert self.calibration is not None
        rows, drafted, accepted, truncated = opened.rows, outcome.drafted, outcome.accepted, outcome.truncated
        if outcome.confidence is None:
            dropped = np.full(len(rows), math.nan)
        else:
            dropped = self.calibration.observe(rows, drafted, accepted, truncated, outcome.proposed, outcome.confidence)
        self.acceptance.observe(rows, opened.class_ids, drafted, accepted, truncated, dropped)

    def _models(self, max_draft: int) -> tuple[AcceptanceModel, ConfidenceCalibration]:
        if self.acceptance is None or self.calibration is None:
            self.acceptance = AcceptanceModel(max(max_draft, 1))
            self.calibration = ConfidenceCalibration(self.acceptance.slots.capacity)
            self._stopping = StoppingValues(self.calibration)
            self._first_token_at = np.full(self.acceptance.slots.capacity, math.nan)
        return self.acceptance, self.calibration

    def _rows(self, view: StepView) -> IntArray:
        """State rows of the view's requests, fresh ones cleared in every model."""
        assert self.acceptance is not None
        assert self.calibration is not None
        rows, fresh = self.acceptance.rows_and_fresh(view.request_ids)
        if len(fresh):
            capacity = self.acceptance.slots.capacity
            self.calibration.reset(fresh, capacity)
            if len(self._first_token_at) < capacity:
                self._first_token_at = np.resize(self._first_token_at, capacity)
            self._first_token_at[fresh] = math.nan
        if self.config.tpot_slo_ms is not None:
            started = rows[(view.phase != Phase.PREFILL) & np.isnan(self._first_token_at[rows])]
            self._first_token_at[started] = view.now
        return rows

    def _costs(self, view: StepView, batch: _Batch) -> StepCosts:
        verify = self.latency.verify_curve(
            batch.decoding + view.prefill_tokens, batch.draft_room, batch.context_tokens, view.size
        )
        start, each_pass, row = self.latency.draft_costs(batch.context_tokens / view.size)
        if view.parallel_drafter:
            return StepCosts(verify, draft_start=start + each_pass + row * batch.decoding)
        return StepCosts(verify, start, each_pass, row)

    def _price(self, view: StepView, batch: _Batch, conditional: FloatArray, costs: StepCosts) -> float:
        """Tokens a second: the decoding requests' rate, and more where a first token waits for this step."""
        rate = self.price.rate(batch.decoding)
        if rate is None:
            rate = best_rate(survival(conditional), costs, float(batch.decoding))
        # The first tokens that a plan delays: of the prompts in this step and, where tokens leave after the drafting,
        # of the requests whose first token is ready. Requests still queued gain by throughput, not by idle drafters.
        delayed = batch.prefilling + (batch.starting if view.draft_before_emit else 0)
        return rate * (1.0 + self.config.first_token_weight * delayed / batch.decoding)

    def _max_seconds(self, view: StepView, rows: IntArray, costs: StepCosts) -> float:
        """Longest step that keeps every decoding request within the TPOT objective; never shorter than not drafting."""
        if self.config.tpot_slo_ms is None:
            return math.inf
        elapsed = view.now - self._first_token_at[rows]
        slack = self.config.tpot_slo_ms / 1e3 * view.emitted_tokens - elapsed
        return max(float(np.nanmin(slack)), float(costs.verify[0]))

    def _off(
        self,
        view: StepView,
        rows: IntArray,
        limits: IntArray,
        conditional: FloatArray,
        costs: StepCosts,
        charges: FloatArray | None,
        opened: _Open,
        price: float,
    ) -> StepPlan:
        """Nothing pays: draft nothing, or a probe where one is due and delays no first token."""
        assert self.acceptance is not None
        lengths = np.zeros(view.size, np.int64)
        seconds = float(costs.verify[0])
        if view.prefill_tokens == 0:
            jump, each = _verify_costs(costs.verify, opened.decoding)
            shared = costs.draft_start + costs.draft_pass + jump
            of_row = np.full(view.size, costs.draft_token + each)
            if charges is not None:
                of_row += charges
            expected = conditional[:, 0]
            chosen = self.probes.choose(limits > 0, shared, of_row, expected / price, self.acceptance.evidence(rows))
            if chosen is not None:
                lengths[chosen] = PROBE_DRAFT_LENGTH
                opened.probe_price, opened.probe_expected = price, expected[chosen]
                return StepPlan(
                    lengths,
                    opened.decoding + float(expected[chosen].sum()),
                    seconds + shared + float(of_row[chosen].sum()),
                    "probe while drafting does not pay",
                    probe=True,
                )
        if self._offs > 1 and self.config.tpot_slo_ms is None and float(conditional[:, 0].max()) < REST_BELOW:
            self._rest = min(2 ** (self._offs - 2), MAX_REST)
        return StepPlan(lengths, opened.decoding, seconds, f"no draft pays at {price:.0f} tok/s")

    def _nothing_to_draft(self, view: StepView, batch: _Batch) -> StepPlan:
        seconds = float(self._costs(view, batch).verify[0]) if self.latency.calibrated and view.size else math.nan
        return StepPlan(np.zeros(view.size, np.int64), batch.decoding, seconds, "no request can draft")

    def _explore(self, limits: IntArray) -> StepPlan:
        length = EXPLORATION[self._explored % len(EXPLORATION)]
        self._explored += 1
        return StepPlan(np.minimum(limits, length), reason=f"learning what a draft of {length} costs", probe=True)
