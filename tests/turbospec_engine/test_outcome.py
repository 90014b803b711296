"""What the engine tells the controller is what happened."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.turbospec_engine.harness import FixedPlans, Pair, RandomPlans, random_prompts
from turbospec import Phase, StepOutcome, StepPlan, StepView
from turbospec.policy import load_controller
from turbospec_engine import Engine, SamplingParams


class PassCounter:
    """Counts a runner's passes and their tokens."""

    def __init__(self, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[int] = []
        forward = runner.forward

        def counted(input_ids: Any, batch: Any, logits_at: Any) -> Any:
            self.passes.append(len(input_ids))
            return forward(input_ids, batch, logits_at)

        monkeypatch.setattr(runner, "forward", counted)


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_every_field(emit: str, llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = RandomPlans(5)
    engine = Engine(llama.config(emit=emit, max_num_batched_tokens=24), plans)
    target = PassCounter(engine.target, monkeypatch)
    drafter = PassCounter(engine.drafter.runner, monkeypatch)  # pyright: ignore
    catching_up = list[None]()
    compute = engine.drafter._compute  # pyright: ignore
    monkeypatch.setattr(engine.drafter, "_compute", lambda *given: catching_up.append(compute(*given)))
    prompts = random_prompts(12, longest=50, seed=4)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=16))

    assert len(plans.views) == len(plans.outcomes) == len(target.passes)
    for view, plan, outcome, tokens in zip(plans.views, plans.plans, plans.outcomes, target.passes, strict=True):
        assert outcome.step == view.step
        np.testing.assert_array_equal(outcome.request_ids, view.request_ids)
        assert outcome.tokens_batched == outcome.padded_tokens == tokens
        decoding = view.phase != Phase.PREFILL
        assert tokens == outcome.prefill_tokens + (1 + outcome.drafted)[decoding].sum()
        assert (outcome.accepted <= outcome.drafted).all()
        assert (outcome.drafted == plan.draft_lengths).all()
        assert (outcome.proposed == outcome.drafted).all()
        assert (view.draft_limits[~decoding] == 0).all()
        assert (view.draft_limits <= np.maximum(view.tokens_left - 1, 0)).all()
        finished_inside = outcome.truncated[decoding]
        expected = outcome.accepted[decoding] + ~finished_inside
        np.testing.assert_array_equal(outcome.emitted[decoding], expected)
        rows = [int((outcome.proposed > depth).sum()) for depth in range(int(outcome.proposed.max(initial=0)))]
        assert outcome.draft_rows.tolist() == rows
        if rows:
            assert outcome.confidence is not None
            assert outcome.confidence.shape == (view.size, outcome.proposed.max())
            assert (np.isfinite(outcome.confidence).sum(1) == outcome.proposed).all()
            drafting = outcome.proposed > 0
            assert outcome.catch_up_tokens == view.drafter_lag_tokens[drafting].sum()
            contexts = view.context_tokens + 1
            assert outcome.draft_context_tokens == sum(
                int((contexts[outcome.proposed > depth] + depth).sum()) for depth in range(len(rows))
            )
        assert 0 < outcome.verify_seconds < outcome.step_seconds
        assert outcome.draft_seconds + outcome.verify_seconds <= outcome.step_seconds
    late = 0 if emit == "before_draft" else len(prompts)
    unreported = sum(len(output.token_ids) for output in outputs) - sum(
        int(outcome.emitted.sum()) for outcome in plans.outcomes
    )
    # Only the first token of a request that was admitted after the plan is in no outcome.
    assert 0 <= unreported <= late
    assert len(drafter.passes) - len(catching_up) == sum(len(outcome.draft_rows) for outcome in plans.outcomes)


def test_off_runs_no_drafter_and_resuming_catches_up(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = FixedPlans(longest=0)
    engine = Engine(llama.config(), plans)
    drafter = PassCounter(engine.drafter.runner, monkeypatch)  # pyright: ignore
    engine.add_request([5] * 20, SamplingParams(max_tokens=40, ignore_eos=True))
    for _ in range(5):
        engine.step()
    assert drafter.passes == []
    plans.longest = 2
    engine.step()
    # 20 prompt tokens and 5 emitted ones in the first pass, of which the last two are ordinary.
    assert plans.views[-1].drafter_lag_tokens.tolist() == [23]
    assert plans.outcomes[-1].catch_up_tokens == 23
    assert drafter.passes == [25, 1]
    engine.step()
    assert plans.views[-1].drafter_lag_tokens.tolist() == [0]
    assert drafter.passes[2] in (1, 2)


def test_phases(llama: Pair) -> None:
    plans = FixedPlans(longest=1)
    engine = Engine(llama.config(max_num_batched_tokens=8), plans)
    engine.add_request([7] * 10, SamplingParams(max_tokens=8, ignore_eos=True))
    for _ in range(4):
        engine.step()
    assert [int(view.phase[0]) for view in plans.views] == [
        Phase.PREFILL,
        Phase.PREFILL,
        Phase.FIRST_DECODE,
        Phase.DECODE,
    ]
    assert [view.prefill_tokens for view in plans.views] == [8, 2, 0, 0]


def test_first_token_waits_for_the_draft_only_after_draft(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for emit, drafted_before in (("before_draft", False), ("after_draft", True)):
        engine = Engine(llama.config(emit=emit), FixedPlans(longest=4))
        drafter = PassCounter(engine.drafter.runner, monkeypatch)  # pyright: ignore
        engine.add_request([5] * 20, SamplingParams(max_tokens=8, ignore_eos=True))
        began = time.perf_counter()
        outputs = engine.step()
        assert outputs[0].new_token_ids
        assert began < outputs[0].emitted_at <= time.perf_counter()
        assert bool(drafter.passes) == drafted_before


def test_a_request_aborted_before_its_verification_teaches_nothing(llama: Pair) -> None:
    plans = FixedPlans(longest=3)
    engine = Engine(llama.config(emit="after_draft"), plans)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    dropped = [engine.add_request([3, 4, 5], params), engine.add_request([6, 7], params)]
    engine.add_request([8, 9], params)
    for _ in range(2):
        engine.step()
    for row, request_id in enumerate(dropped):
        engine.abort(request_id)
        if row == 0:
            engine.add_request([5, 5], params)
        engine.step()
        outcome = plans.outcomes[-1]
        assert outcome.confidence is not None
        gone = outcome.request_ids == row
        assert gone.sum() == 1
        for field in (outcome.proposed, outcome.drafted, outcome.accepted, outcome.emitted, outcome.truncated):
            assert not field[gone].any()
        assert np.isnan(outcome.confidence[gone]).all()
        np.testing.assert_array_equal(outcome.proposed, outcome.drafted)
        np.testing.assert_array_equal(np.isfinite(outcome.confidence).sum(1), outcome.proposed)
        assert outcome.proposed[~gone].any()
        assert outcome.draft_rows[0] == (outcome.proposed > 0).sum() + 1, "its drafting took time all the same"


def test_the_adaptive_policy_learns_from_any_outcome(llama: Pair) -> None:
    """Aborts and arrivals at random, between a draft and its verification too; with no guard, a fault is raised."""
    policy = load_controller("adaptive", seed=0).policy

    class Taught(RandomPlans):
        def plan(self, view: StepView) -> StepPlan:
            policy.plan(view)
            return super().plan(view)

        def observe(self, outcome: StepOutcome) -> None:
            super().observe(outcome)
            policy.observe(outcome)

    plans = Taught()
    engine = Engine(llama.config(emit="after_draft"), plans)
    rng = np.random.default_rng(0)
    live: list[str] = []
    for prompt in random_prompts(80, longest=20, seed=2):
        live.append(engine.add_request(prompt, SamplingParams(max_tokens=40, ignore_eos=True)))
        if rng.random() < 0.5:
            engine.abort(live.pop(int(rng.integers(len(live)))))
        for _ in range(3):
            engine.step()
    assert sum(bool(outcome.drafted.any()) for outcome in plans.outcomes) > 100


@pytest.mark.parametrize("keep_last", [True, False])
def test_confidence_is_as_wide_as_the_longest_draft_that_a_gate_let_be(keep_last: bool, llama: Pair) -> None:
    class SecondPassIsTheLast:
        passes = 0

        def advance(self, rows: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            self.passes += 1
            more = np.full(len(rows), self.passes < 2)
            return more | keep_last, more

    class GatedPlans(FixedPlans):
        def plan(self, view: StepView) -> StepPlan:
            plan = super().plan(view)
            plan.gate = SecondPassIsTheLast()
            return plan

    plans = GatedPlans(longest=6)
    Engine(llama.config(), plans).generate([[1, 2, 3], [4, 5]], SamplingParams(max_tokens=12, ignore_eos=True))
    drafting = [outcome for outcome in plans.outcomes if len(outcome.draft_rows) == 2]
    assert drafting
    for outcome in drafting:
        assert outcome.confidence is not None
        assert outcome.confidence.shape == (outcome.request_ids.size, 2)
        assert outcome.confidence.flags.c_contiguous, "the controller's compiled code knows no other layout"
        np.testing.assert_array_equal(np.isfinite(outcome.confidence).sum(1), outcome.proposed)
        longest = outcome.proposed == 2
        assert (outcome.drafted[longest] == (2 if keep_last else 1)).all()


@pytest.mark.parametrize("place", [4, 6], ids=["before the last draft token", "at the last draft token"])
def test_truncated_by_eos_shows_no_failure(place: int, llama: Pair) -> None:
    """The target as its own drafter accepts everything, so only EOS can end an acceptance."""
    config = llama.config(drafter=llama.target)
    free = Engine(config, FixedPlans(longest=0)).generate([[9, 8, 7]], SamplingParams(max_tokens=12, ignore_eos=True))
    stop_at = free[0].token_ids[place]
    plans = FixedPlans(longest=6)
    engine = Engine(config, plans)
    object.__setattr__(engine.models, "eos_token_ids", frozenset([stop_at]))
    output = engine.generate([[9, 8, 7]], SamplingParams(max_tokens=12))[0]
    assert output.finish_reason == "stop"
    assert output.token_ids == free[0].token_ids[: free[0].token_ids.index(stop_at) + 1]
    last = plans.outcomes[-1]
    assert last.emitted[0] <= last.drafted[0]
    assert last.truncated.tolist() == [True]
    assert last.accepted[0] == last.emitted[0]


def test_drafts_shorten_before_anyone_is_preempted(llama: Pair) -> None:
    plans = FixedPlans(longest=6)
    engine = Engine(llama.config(num_blocks=14, block_size=8), plans)
    # After the prefills one KV block is free in each model: the first request's draft takes both. The third request
    # finishes then.
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (9, 9, 2)]
    engine.generate([[1] * 14, [2] * 14, [3] * 14], params)
    assert plans.plans[1].draft_lengths.tolist() == [6, 6, 0]
    assert plans.outcomes[1].drafted.tolist() == [6, 1, 0]
    assert engine.scheduler.num_preemptions == 0
