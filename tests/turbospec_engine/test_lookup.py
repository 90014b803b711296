"""A look-up beside the drafter: outputs stay the target's, and the controller is told who drafted what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.turbospec_engine.harness import (
    Answers,
    AppendingPlans,
    EveryThird,
    FixedPlans,
    MixedPlans,
    Pair,
    Reference,
    assert_blocks_sound,
    random_prompts,
)
from turbospec import Phase, Source, StepOutcome, StepPlan, StepView, UserError
from turbospec.controller import Controller
from turbospec.policy import load_policy
from turbospec.policy.lookup_first import LookupFirstConfig
from turbospec_engine import Engine, Models, SamplingParams
from turbospec_engine.drafter import LookupDrafter

MAX_TOKENS = 24
VOCAB = 257


class Counted(EveryThird):
    """Counts the requests of each search."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.searched: list[int] = []

    def find(self, requests, limits, drafts=None):  # pyright: ignore
        self.searched += np.flatnonzero(limits).tolist()
        return super().find(requests, limits, drafts)


class Outcomes:
    """A listener that keeps outcomes as random plans do."""

    def __init__(self, plans: MixedPlans) -> None:
        self.plans = plans

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        self.plans.outcomes.append(outcome)


class LookupPlans(FixedPlans):
    """Drafts all that the look-up found, up to `longest`."""

    def plan(self, view: StepView) -> StepPlan:
        assert view.lookup is not None
        self.views.append(view)
        self.plans.append(
            StepPlan(np.minimum(view.lookup.lengths, self.longest), sources=np.full(view.size, Source.LOOKUP))
        )
        return self.plans[-1]


class Append(FixedPlans):
    """Two tokens of the drafter, and up to `longest` of the look-up after them."""

    def plan(self, view: StepView) -> StepPlan:
        self.views.append(view)
        limits = np.full(view.size, self.longest)
        self.plans.append(StepPlan(np.minimum(2, view.draft_limits), append_limits=limits))
        return self.plans[-1]


def repetitive_prompts(count: int, longest: int, seed: int) -> list[list[int]]:
    return [prompt * 3 for prompt in random_prompts(count, longest, seed=seed)]


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_random_sources_and_lengths(emit: str, llama: Pair, reference: Callable[[Path], Reference]) -> None:
    """100 prompts in each order of emission."""
    plans = MixedPlans(1)
    controller, params = Controller(plans), SamplingParams(max_tokens=MAX_TOKENS)
    config = llama.config(emit=emit, max_num_batched_tokens=64, max_num_seqs=16)
    prompts = random_prompts(100, longest=60, seed=3)
    known = Engine(config, FixedPlans(longest=0)).generate(prompts, params)
    engine = Engine(config, controller, lookup=Answers(VOCAB, prompts, [answer.token_ids for answer in known]))
    outputs = engine.generate(prompts, params)
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert compared.near_ties <= 2
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (0, 0)
    for source in Source:
        drafted, accepted = plans.counts(source)
        assert drafted > 200
        assert 0.1 * drafted < accepted < 0.95 * drafted
    assert_blocks_sound(engine)
    assert engine.allocator.num_free == engine.allocator.num_blocks


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
@pytest.mark.parametrize("blocks", [None, 24])
def test_appended_tokens(emit: str, blocks: int | None, llama: Pair, reference: Callable[[Path], Reference]) -> None:
    """With blocks for all drafts, and with too few."""
    plans = AppendingPlans(7)
    controller, params = Controller(plans), SamplingParams(max_tokens=MAX_TOKENS)
    config = llama.config(emit=emit, max_num_batched_tokens=64, max_num_seqs=16, num_blocks=blocks)
    prompts = random_prompts(60, longest=60, seed=9)
    known = Engine(config, FixedPlans(longest=0)).generate(prompts, params)
    engine = Engine(config, controller, lookup=Answers(VOCAB, prompts, [answer.token_ids for answer in known]))
    outputs = engine.generate(prompts, params)
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert compared.near_ties <= 2
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (0, 0)
    verified, accepted = plans.appended()
    assert verified > 30
    assert 0 < accepted < verified
    assert_blocks_sound(engine)
    assert engine.allocator.num_free == engine.allocator.num_blocks


class EndsAfterOne:
    """A gate that keeps the first draft token and wants no other."""

    def advance(self, rows: np.ndarray, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)


def test_only_whole_drafts_are_appended_to(llama: Pair) -> None:
    class Gated(Append):
        def plan(self, view: StepView) -> StepPlan:
            plan = super().plan(view)
            plan.gate = EndsAfterOne()
            return plan

    plans = Gated(6)
    engine = Engine(llama.config(max_draft=2), plans, lookup=EveryThird(VOCAB))
    engine.generate([[1, 2, 3]], SamplingParams(max_tokens=12, ignore_eos=True))
    for view, outcome in zip(plans.views, plans.outcomes, strict=True):
        assert outcome.appended is not None
        assert not outcome.appended[view.draft_limits == 2].any()
    assert any((outcome.drafted == 1).any() for outcome in plans.outcomes)


def test_no_more_is_appended_than_a_look_up_may_draft(llama: Pair) -> None:
    plans = Append(6)
    engine = Engine(llama.config(max_draft=8, max_lookup=3), plans, lookup=EveryThird(VOCAB))
    engine.generate([[1, 2, 3]], SamplingParams(max_tokens=30, ignore_eos=True))
    assert max(int(outcome.appended.max()) for outcome in plans.outcomes if outcome.appended is not None) == 3


def test_append_limits_of_an_unwrapped_policy_are_checked(llama: Pair) -> None:
    class Short(Append):
        def plan(self, view: StepView) -> StepPlan:
            plan = super().plan(view)
            plan.append_limits = np.array([1, 1, 1])
            return plan

    with pytest.raises(UserError, match=r"append limits \[1, 1, 1\] are not for the step's 1 requests"):
        Engine(llama.config(max_draft=2), Short(6), lookup=EveryThird(VOCAB)).generate([[1, 2, 3]], SamplingParams())


def test_limits_of_appended_tokens(llama: Pair) -> None:
    """Only drafts of the drafter are extended, within the request's own cap and its length."""
    view_of, capped = Append(6), SamplingParams(max_tokens=8, max_draft=3, ignore_eos=True)
    engine = Engine(llama.config(max_draft=2, max_lookup=15), view_of, lookup=EveryThird(VOCAB))
    engine.generate([[1, 2, 3], [4, 5, 6]], [capped, SamplingParams(max_tokens=40, ignore_eos=True)])
    for view, outcome in zip(view_of.views, view_of.outcomes, strict=True):
        appended = outcome.appended
        assert appended is not None
        assert (appended <= 6).all()
        assert (outcome.drafted[view.request_ids == 0] <= 3).all()
        assert (outcome.drafted <= np.maximum(view.tokens_left - 1, 0)).all()
        assert not appended[outcome.drafted == appended].any()
        assert outcome.proposed.tolist() == outcome.drafted.tolist()
    assert any((outcome.appended == 6).any() for outcome in view_of.outcomes)


def test_what_was_appended_is_told_of_the_requests_that_are_left(llama: Pair) -> None:
    plans = Append(longest=3)
    engine = Engine(llama.config(emit="after_draft", max_draft=2, max_lookup=5), plans, lookup=EveryThird(VOCAB))
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    aborted = engine.add_request([1, 2, 3], SamplingParams(max_tokens=30, ignore_eos=True, max_draft=2))
    for prompt in ([4, 5, 6], [7, 8]):
        engine.add_request(prompt, params)
    engine.step()
    engine.abort(aborted)
    engine.step()
    outcome = plans.outcomes[-1]
    assert outcome.appended is not None
    assert outcome.appended.tolist() == [0, 3, 3]


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_preemption(emit: str, llama: Pair, reference: Callable[[Path], Reference]) -> None:
    plans = MixedPlans(2)
    config = llama.config(
        emit=emit, lookup="ngram", num_blocks=22, block_size=8, max_num_batched_tokens=16, max_num_seqs=8
    )
    controller = Controller(plans)
    engine = Engine(config, controller)
    prompts = repetitive_prompts(10, longest=20, seed=2)
    outputs = engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))
    assert engine.scheduler.num_preemptions > 0
    compared = reference(llama.target).compare(prompts, [output.token_ids for output in outputs], MAX_TOKENS)
    assert not compared.different
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (0, 0)
    assert engine.allocator.num_free == engine.allocator.num_blocks


def test_drafts_shorten_before_anyone_is_preempted(llama: Pair) -> None:
    plans = LookupPlans(longest=12)
    engine = Engine(llama.config(num_blocks=13, block_size=8), plans, lookup=EveryThird(VOCAB))
    # After the prefills one KV block is free: the first request's draft takes it. The third request finishes then.
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (9, 9, 2)]
    engine.generate([[1] * 14, [2] * 14, [3] * 14], params)
    lookup = plans.views[1].lookup
    assert lookup is not None
    assert lookup.lengths.tolist() == [7, 7, 0]
    assert plans.outcomes[1].drafted.tolist() == [7, 1, 0]
    assert engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_aborts_and_arrivals(emit: str, llama: Pair) -> None:
    """At random, between a draft and its verification too. What is left gives what it gives alone."""
    plans, lookup = MixedPlans(3), Counted()
    controller = Controller(plans)
    engine = Engine(llama.config(emit=emit), controller, lookup=lookup)
    alone = Engine(llama.config(), FixedPlans(longest=0))
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    rng = np.random.default_rng(0)
    prompts = random_prompts(40, longest=20, seed=2)
    tokens: dict[str, list[int]] = {}
    aborted: set[str] = set()
    for number in range(200):
        if prompts and number % 3 == 0:
            tokens[engine.add_request(prompts[-1], params, request_id=str(len(prompts)))] = []
            prompts.pop()
        if number % 5 == 4 and (live := list(engine._requests)):
            aborted.add(live[int(rng.integers(len(live)))])
            engine.abort(live[int(rng.integers(len(live)))])
        for output in engine.step():
            tokens[output.request_id] += output.new_token_ids
    assert not engine.has_work()
    assert (controller.stats.host_faults, controller.stats.guard_trips) == (0, 0)
    assert sorted(lookup.finished) == list(range(40)), "each request's end is reported once"
    whole = {name: emitted for name, emitted in tokens.items() if len(emitted) == 16}
    assert 5 < len(whole) < 40
    prompts = random_prompts(40, longest=20, seed=2)
    outputs = alone.generate([prompts[int(name) - 1] for name in whole], params)
    assert [list(output.token_ids) for output in outputs] == list(whole.values())


def test_stop_strings_and_the_length_limit(llama: Pair) -> None:
    engine = Engine(llama.config(lookup="ngram"), MixedPlans(4))
    alone = Engine(llama.config(), FixedPlans(longest=0))
    free = alone.generate(["the cat"], SamplingParams(max_tokens=30, ignore_eos=True))[0]
    for end in range(6, 26, 4):
        stop = free.text[end - 3 : end]
        params = SamplingParams(max_tokens=end, ignore_eos=True, stop=(stop,))
        ours, theirs = (each.generate(["the cat"], params)[0] for each in (engine, alone))
        assert (ours.token_ids, ours.text, ours.finish_reason) == (theirs.token_ids, theirs.text, theirs.finish_reason)


def test_what_the_view_says(llama: Pair) -> None:
    plans = MixedPlans(5, longest=9)
    config = llama.config(max_draft=3, max_lookup=9, max_num_batched_tokens=24)
    lookup = Counted()
    engine = Engine(config, plans, lookup=lookup)
    caps = [None, 5, 0, 9]
    params = [SamplingParams(max_tokens=20, ignore_eos=True, max_draft=cap) for cap in caps]
    engine.generate(random_prompts(4, longest=50, seed=4), params)
    searched = longest = 0
    for view in plans.views:
        assert view.lookup is not None
        assert view.max_draft == 9
        assert (view.draft_limits <= 3).all()
        decoding = view.phase != Phase.PREFILL
        cap = np.array([9 if caps[row_id] is None else caps[row_id] for row_id in view.request_ids])
        expected = np.where(decoding, np.minimum(np.minimum(view.tokens_left - 1, cap), 9), 0)
        np.testing.assert_array_equal(view.lookup.lengths, expected)
        searched += np.count_nonzero(expected)
        longest = max(longest, int(expected.max()))
        np.testing.assert_array_equal(view.lookup.scores, np.where(expected, 2.0, 0.0))
    assert len(lookup.searched) == searched
    assert longest == 9


def test_a_request_may_cap_its_drafts_up_to_the_longer_of_the_two(llama: Pair) -> None:
    engine = Engine(llama.config(max_draft=3, max_lookup=9), FixedPlans(), lookup=EveryThird(VOCAB))
    engine.add_request([1, 2], SamplingParams(max_draft=9))
    with pytest.raises(UserError, match="above the engine's 9"):
        engine.add_request([1, 2], SamplingParams(max_draft=10))


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_the_outcome_counts_the_drafters_work_alone(emit: str, llama: Pair) -> None:
    plans = MixedPlans(6)
    engine = Engine(llama.config(emit=emit), plans, lookup=EveryThird(VOCAB))
    engine.generate(repetitive_prompts(20, longest=15, seed=5), SamplingParams(max_tokens=30, ignore_eos=True))
    mixed = 0
    for view, plan, outcome in zip(plans.views, plans.plans, plans.outcomes, strict=True):
        assert outcome.sources is plan.sources or outcome.sources.tolist() == plan.sources.tolist()  # pyright: ignore
        np.testing.assert_array_equal(outcome.drafted, plan.draft_lengths)
        np.testing.assert_array_equal(outcome.proposed, plan.draft_lengths)
        of_drafter = np.where(outcome.sources == Source.DRAFTER, outcome.proposed, 0)
        rows = [int((of_drafter > depth).sum()) for depth in range(int(of_drafter.max(initial=0)))]
        assert outcome.draft_rows.tolist() == rows
        assert outcome.catch_up_tokens == view.drafter_lag_tokens[of_drafter > 0].sum()
        context = view.context_tokens + 1
        assert outcome.draft_context_tokens == sum(
            int((context[of_drafter > depth] + depth).sum()) for depth in range(len(rows))
        )
        if not rows:
            assert outcome.confidence is None
            continue
        copied = (outcome.sources == Source.LOOKUP) & (outcome.proposed > 0)
        mixed += copied.any()
        assert outcome.confidence is not None
        np.testing.assert_array_equal(np.isfinite(outcome.confidence).sum(1), outcome.proposed)
        assert np.nanmin(outcome.confidence[copied], initial=1.0) == 1.0
    assert mixed > 20


def test_the_drafter_is_left_behind_and_catches_up(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = LookupPlans(longest=4)
    engine = Engine(llama.config(), plans, lookup=EveryThird(VOCAB))
    passes: list[int] = []
    forward = engine.drafter.runner.forward  # pyright: ignore
    monkeypatch.setattr(
        engine.drafter.runner,  # pyright: ignore
        "forward",
        lambda input_ids, batch, logits_at: passes.append(len(input_ids)) or forward(input_ids, batch, logits_at),
    )
    engine.add_request([5] * 20, SamplingParams(max_tokens=60, ignore_eos=True))
    for _ in range(6):
        engine.step()
    assert passes == []
    assert all(len(outcome.draft_rows) == 0 for outcome in plans.outcomes)
    assert sum(outcome.drafted.sum() for outcome in plans.outcomes) == 20
    engine.controller = FixedPlans(longest=2)
    engine.step()
    tokens = int(20 + sum(outcome.emitted.sum() for outcome in plans.outcomes))
    assert passes == [tokens, 1]
    assert engine.controller.outcomes[0].catch_up_tokens == tokens - 2
    assert engine.controller.outcomes[0].sources.tolist() == [Source.DRAFTER]  # pyright: ignore


def test_a_plan_that_names_no_source_is_the_drafters(llama: Pair) -> None:
    plans = FixedPlans(longest=15)
    engine = Engine(llama.config(max_draft=3), plans, lookup=EveryThird(VOCAB))
    engine.generate([[1, 2, 3]], SamplingParams(max_tokens=20, ignore_eos=True))
    assert max(int(outcome.drafted.max()) for outcome in plans.outcomes) == 3
    assert all(outcome.sources is not None and not outcome.sources.any() for outcome in plans.outcomes)


@pytest.mark.parametrize(
    ("lengths", "sources"),
    [([9], [Source.LOOKUP]), ([-1], [Source.LOOKUP]), ([7], [Source.DRAFTER]), ([1], [2]), ([1], [0, 0])],
)
def test_plans_that_cannot_run(lengths: list[int], sources: list[int], llama: Pair) -> None:
    class Wrong(FixedPlans):
        def plan(self, view: StepView) -> StepPlan:
            return StepPlan(np.array(lengths), sources=np.array(sources))

    engine = Engine(llama.config(max_lookup=8), FixedPlans(longest=0), lookup=EveryThird(VOCAB))
    engine.add_request([1, 2], SamplingParams(max_tokens=30, ignore_eos=True))
    engine.step()
    engine.controller = Wrong()
    with pytest.raises(UserError, match=r"turbospec\.controller\.Controller"):
        engine.step()


@pytest.mark.parametrize("emit", ["before_draft", "after_draft"])
def test_the_shipped_policies_that_know_sources(emit: str, llama: Pair) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompts = random_prompts(30, longest=30, seed=9)
    known = [output.token_ids for output in Engine(llama.config(), FixedPlans(longest=0)).generate(prompts, params)]
    thresholds = LookupFirstConfig(version=1, policy="lookup_first", min_score=2, lookup_length=7)
    for policy in (load_policy("adaptive", seed=0), thresholds.build(None, 0)):
        seen = MixedPlans()
        controller = Controller(policy, listeners=[Outcomes(seen)])
        engine = Engine(llama.config(emit=emit), controller, lookup=Answers(VOCAB, prompts, known))
        assert [output.token_ids for output in engine.generate(prompts, params)] == known
        assert (controller.stats.host_faults, controller.stats.guard_trips) == (0, 0)
        assert seen.counts(Source.LOOKUP)[1] > 100


def test_engines_without_a_look_up_have_one_source(llama: Pair) -> None:
    plans = FixedPlans(longest=2)
    Engine(llama.config(), plans).generate([[1, 2, 3]], SamplingParams(max_tokens=5))
    assert all(view.lookup is None for view in plans.views)
    assert all(outcome.sources is None for outcome in plans.outcomes)


def test_a_look_up_needs_a_drafter_beside_it(llama: Pair) -> None:
    models = Models.load(llama.config())
    with pytest.raises(UserError, match="second source"):
        llama.config(drafter="ngram", lookup="ngram")
    for settings in ({"drafter": None, "lookup": "ngram"}, {"drafter": "ngram"}):
        with pytest.raises(UserError, match="second source"):
            Engine(llama.config(**settings), FixedPlans(), models=models, lookup=EveryThird(VOCAB))
    own = LookupDrafter(EveryThird(VOCAB))
    engine = Engine(llama.config(), FixedPlans(longest=3), models=models, drafter=own)
    engine.generate([[1, 2, 3]], SamplingParams(max_tokens=5, ignore_eos=True))
    assert own.lookup.finished == [0]  # pyright: ignore


@pytest.mark.parametrize("settings", [{"lookup": "tree"}, {"max_lookup": 0}, {"max_lookup": 129}])
def test_bad_settings(settings: dict, llama: Pair) -> None:
    with pytest.raises(UserError) as error:
        llama.config(**settings)
    assert "\n" not in str(error.value)
