"""The loop against a scheduler's bookkeeping as vLLM's is, without vLLM."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turbospec.hosts.vllm.scheduler.drafter_pass_cost import DrafterPasses
from turbospec.hosts.vllm.scheduler.lookups import Lookups
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.steps import Verified, VerifyResultFn
from turbospec.hosts.vllm.scheduler.views import EngineLimits, Queue
from turbospec.hosts.vllm.shared.drafter_orders import DrafterOrders, KvLag
from turbospec.hosts.vllm.shared.step_times import NO_GRAPHS, CapturedGraphs, StepTimes
from turbospec.interface import IntArray, Phase, Source, StepOutcome, StepPlan, StepView

LIMITS = EngineLimits(
    max_draft=5,
    max_model_len=100,
    reserved_length=5,
    max_batched_tokens=64,
    parallel_drafter=False,
    calls_trim=True,
)
ON_DEMAND = replace(LIMITS, kept_tokens=8)


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int = 4
    max_tokens: int = 40
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    num_output_tokens: int = 0
    sampling_params: Any = None
    use_structured_output: bool = False
    text: Sequence[int] = range(1000)
    """Its tokens, those to come included."""

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def all_token_ids(self) -> list[int]:
        return [*self.text[: self.num_tokens]]


@dataclass
class OneToken:
    """A trim that keeps one token of each draft, or none."""

    keeps: int = 1
    calls: list[tuple[list[int], int]] = field(default_factory=list)

    def trim(self, drafts: IntArray, tokens_batched: int) -> IntArray:
        self.calls.append((drafts.tolist(), tokens_batched))
        return np.minimum(drafts, self.keeps)


@dataclass
class Recorder:
    """Drafts what it is told, capped by the limits, and keeps what it sees."""

    lengths: list[int] = field(default_factory=list)
    idle_steps: int = 1
    """Steps that may reuse a plan without drafts, its own included."""
    sources: Source | None = None
    """Of all drafts, whose lengths are then within those of the look-up."""
    probe: bool = False
    """Whether all drafts are experiments."""
    trim: OneToken | None = None
    """Of all plans."""
    views: list[StepView] = field(default_factory=list)
    outcomes: list[StepOutcome] = field(default_factory=list)

    def plan(self, view: StepView) -> StepPlan:
        self.views.append(view)
        plan = StepPlan.same_length(view, self.lengths.pop(0) if self.lengths else 0, "")
        plan.valid_steps, plan.probe, plan.trim = self.idle_steps, self.probe, self.trim
        if (longest := int(plan.draft_lengths.max(initial=0))) > 1:
            plan.passes = min((each for each in view.drafter_graph_lengths if each >= longest), default=0)
        if self.sources is not None:
            assert view.lookup is not None
            plan.draft_lengths, plan.sources = view.lookup.lengths, np.full(view.size, self.sources)
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)


def result(rows: dict[str, tuple[int, int, int]]) -> VerifyResultFn:
    """Drafted, accepted and emitted tokens of each request that a step sampled for."""

    def read(names: Sequence[str]) -> Verified:
        columns = np.array([rows.get(name, (0, 0, 0)) for name in names], np.int64).reshape(-1, 3).T.copy()
        return Verified(np.array([name in rows for name in names], np.bool_), *columns)

    return read


class FakeEngine:
    """Schedules all its requests each step; `step` is one of vLLM's, sync."""

    def __init__(
        self,
        controller: Recorder,
        limits: EngineLimits = LIMITS,
        lookups: Lookups | None = None,
        graphs: CapturedGraphs = NO_GRAPHS,
    ) -> None:
        self.loop = VllmLoop(controller, limits, lookups)
        self.loop.learn_graphs(graphs)
        self.drafts: dict[str, int] = {}
        self.orders: DrafterOrders | None = None
        self.began = 0.0
        self.times: StepTimes | None = None
        """That the worker measures."""
        self.numbers: deque[int] = deque()
        """Of the steps under way, oldest first."""

    def schedule(self, requests: list[Request], chunk: int = 64) -> tuple[IntArray, dict[str, int]]:
        verified = {r.request_id: self.drafts.get(r.request_id, 0) for r in requests}
        scheduled = {
            r.request_id: min(r.num_tokens + verified[r.request_id] - r.num_computed_tokens, chunk) for r in requests
        }
        reused, self.orders = self.loop.reuse_plan(scheduled, self.began)
        if reused:
            lengths = np.zeros(len(requests), np.int64)
        else:
            lengths, _, looked_up, self.orders = self.loop.plan(requests, scheduled, (), Queue(), self.began)
            lengths = lengths + looked_up
        self.numbers.append(self.loop.newest)
        for request, length in zip(requests, lengths.tolist(), strict=True):
            request.num_computed_tokens += scheduled[request.request_id]
            self.drafts[request.request_id] = length
        return lengths, verified

    def finish(
        self, requests: list[Request], verified: dict[str, int], accepted: dict[str, int], *, ahead: bool = False
    ) -> None:
        done: dict[str, tuple[int, int, int]] = {}
        for request in requests:
            name = request.request_id
            if request.num_computed_tokens < request.num_tokens:
                done[name] = 0, 0, 0
                continue
            kept = min(accepted.get(name, 0), verified[name])
            request.num_output_tokens += kept + 1
            request.num_computed_tokens = request.num_tokens - 1
            done[name] = verified[name], kept, kept + 1
        accepted_of = {name: kept for name, (_, kept, _) in done.items()}
        self.loop.finish(
            self.numbers.popleft(),
            result(done),
            lambda names: {name: accepted_of[name] for name in names},
            self.times,
        )
        if not ahead:
            self.loop.settle(Queue())

    def step(self, requests: list[Request], accepted: dict[str, int] | None = None, *, ahead: bool = False) -> IntArray:
        """`ahead`: while this step runs, the last one's outcome is reported and the next one is planned."""
        lengths, verified = self.schedule(requests)
        if ahead:
            self.loop.settle(Queue())
            self.loop.plan_ahead(requests, Queue())
        self.finish(requests, verified, accepted or {}, ahead=ahead)
        return lengths


def test_a_plan_is_closed_by_the_step_that_verifies_its_drafts() -> None:
    controller = Recorder(lengths=[3, 2, 0])
    engine, a, b = FakeEngine(controller), Request("a"), Request("b")
    engine.step([a, b])
    assert controller.outcomes == []
    engine.step([a, b], accepted={"a": 3, "b": 1})
    (outcome,) = controller.outcomes
    assert outcome.step == controller.views[0].step
    assert outcome.drafted.tolist() == [3, 3]
    assert outcome.accepted.tolist() == [3, 1]
    assert outcome.emitted.tolist() == [4, 2]
    assert outcome.tokens_batched == 8
    assert outcome.draft_rows.tolist() == [2, 2]  # the first position comes with the pass of every step
    engine.step([a, b])
    assert controller.outcomes[1].drafted.tolist() == [2, 2]


def test_a_trim_is_called_where_a_step_has_more_prompt_tokens_than_the_view_said() -> None:
    trim = OneToken()
    controller = Recorder(lengths=[3, 3, 3, 3], trim=trim)
    engine, a, b = FakeEngine(controller), Request("a"), Request("b", num_prompt_tokens=70)
    engine.schedule([a, b], chunk=64)
    assert controller.views[-1].prefill_tokens == 6
    drafts = {"a": [-1] * 3}
    assert engine.loop.trim({"a": 4, "b": 6}, drafts) == {}, "the view knew the rest of b's prompt"
    assert engine.loop.trim({"a": 4}, drafts) == {}
    assert engine.loop.trim({"a": 1, "b": 6, "c": 9}, {}) == {}, "nothing is verified"
    assert engine.loop.trim({"c": 9, "d": 4}, {"d": [1, 2, 3]}) == {}, "what is verified is of an earlier plan"
    assert trim.calls == []
    assert engine.loop.trim({"a": 4, "b": 6, "c": 9}, drafts) == {"a": 1}
    assert engine.loop.trim({"a": 2, "b": 6, "c": 9}, {"a": [-1]}) == {}, "the draft is as short already"
    assert trim.calls == [([3, 0], 19), ([1, 0], 17)]
    engine.loop.limits = replace(LIMITS, calls_trim=False)
    assert engine.loop.trim({"a": 4, "b": 6, "c": 9}, drafts) == {}


def test_no_trim_is_called_once_its_plan_is_dropped_or_another_step_has_run() -> None:
    trim = OneToken()
    controller = Recorder(lengths=[3, 3, 0, 3], idle_steps=4, trim=trim)
    engine, a = FakeEngine(controller), Request("a")
    engine.schedule([a])
    engine.loop.reset()
    assert engine.loop.trim({"a": 4, "c": 9}, {"a": [-1] * 3}) == {}
    a.num_computed_tokens = a.num_tokens
    for _ in range(3):
        engine.step([a])
    assert engine.loop.trim({"a": 2, "c": 9}, {"a": [-1]}) == {}, "the last step reused a plan"
    assert trim.calls == []


def test_outputs_are_tied_to_their_steps() -> None:
    """Outputs of steps that the loop did not see, or dropped, change nothing; a step without output closes no plan."""
    controller = Recorder(lengths=[3, 2, 1, 2, 0])
    engine, a = FakeEngine(controller), Request("a")
    engine.step([a])
    assert engine.loop.finish(99, result({}), dict) == 0.0
    engine.schedule([a])
    dropped = engine.numbers.popleft()
    engine.schedule([a])
    engine.loop.finish(engine.numbers.popleft(), result({"a": (2, 2, 3)}), dict)
    engine.loop.settle(Queue())
    assert controller.outcomes == [], "the third step verifies the drafts of the second, whose output never came"
    assert engine.loop.finish(dropped, result({}), dict) == 0.0
    a.num_computed_tokens = a.num_tokens - 1
    engine.step([a], accepted={"a": 1})
    (outcome,) = controller.outcomes
    assert outcome.step == controller.views[2].step
    assert outcome.drafted.tolist() == [1]


def test_after_an_error_the_loop_goes_on_with_the_next_step() -> None:
    controller = Recorder(lengths=[3, 2, 1, 0, 0])
    engine, a = FakeEngine(controller, ON_DEMAND), Request("a")
    engine.step([a])
    engine.schedule([a])
    open_step = engine.numbers.popleft()
    engine.loop.reset()
    assert engine.loop.finish(open_step, result({}), dict) == 0.0
    a.num_computed_tokens = a.num_tokens - 1
    engine.step([a])
    assert controller.outcomes == [], "the step after the error verifies the drafts of a dropped one"
    engine.step([a], accepted={"a": 1})
    (outcome,) = controller.outcomes
    assert outcome.step == controller.views[2].step


def test_after_an_error_requests_are_read_anew() -> None:
    """A session may have begun with its next input in the step with the error."""
    controller = Recorder(lengths=[3, 3])
    engine, a = FakeEngine(controller, lookups=Lookups()), Request("a", max_tokens=40)
    engine.step([a])
    engine.loop.reset()
    a.max_tokens = 3
    engine.step([a])
    assert controller.views[1].draft_limits.tolist() == [0]
    assert controller.views[0].request_ids.tolist() == controller.views[1].request_ids.tolist()


def test_after_an_error_requests_are_read_anew_once() -> None:
    """Were they read anew in every step, nobody would lag, and the drafter would miss what it does not compute."""
    engine, a = FakeEngine(Recorder(), ON_DEMAND), Request("a")
    engine.step([a])
    engine.loop.reset()
    for lag in (1, 2, 3):
        engine.step([a])
        assert engine.loop.known.lag_tokens[engine.loop.known.rows([a])] == [lag]


def test_after_an_error_no_plan_is_reused() -> None:
    controller = Recorder(idle_steps=9)
    engine, a = FakeEngine(controller), Request("a")
    for _ in range(2):
        engine.step([a])
    assert len(controller.views) == 1
    engine.loop.reset()
    engine.step([a])
    assert len(controller.views) == 2


def test_after_an_error_the_drafter_lags_by_nothing() -> None:
    engine, a = FakeEngine(Recorder(lengths=[0, 0]), ON_DEMAND), Request("a")
    engine.step([a])
    engine.loop.reset()
    assert engine.loop.known.lag_tokens[engine.loop.known.rows([a])] == [0]
    engine.step([a])
    assert engine.orders is not None
    assert engine.orders.oldest == 1


def test_prompts_beside_drafts_are_the_drafters_work_too() -> None:
    controller = Recorder(lengths=[0, 2, 0])
    engine, a = FakeEngine(controller, ON_DEMAND), Request("a")
    engine.step([a])
    added = Request("b", num_prompt_tokens=30)
    engine.step([a, added])
    engine.step([a, added])
    fed = controller.outcomes[1].catch_up_tokens
    assert fed >= 30, "its first pass runs over the whole batch"


def test_a_prompt_that_completes_is_at_its_first_decode() -> None:
    controller = Recorder(lengths=[5, 5])
    engine, long = FakeEngine(controller), Request("a", num_prompt_tokens=80)
    lengths, verified = engine.schedule([long])
    engine.finish([long], verified, {})
    assert controller.views[0].phase.tolist() == [Phase.PREFILL]
    assert controller.views[0].prefill_tokens == 16
    assert lengths.tolist() == [0]
    engine.step([long])
    assert controller.views[1].phase.tolist() == [Phase.FIRST_DECODE]
    assert controller.views[1].draft_limits.tolist() == [5]
    assert controller.views[1].draft_before_emit
    engine.step([long])
    assert controller.views[2].phase.tolist() == [Phase.DECODE]
    assert [outcome.prefill_tokens for outcome in controller.outcomes] == [16, 0]


def test_drafts_end_with_the_tokens_left_and_the_model() -> None:
    controller = Recorder(lengths=[5, 5])
    engine = FakeEngine(controller)
    few, full = Request("a", max_tokens=4), Request("b", num_prompt_tokens=95)
    engine.schedule([few, full], chunk=100)
    # Of four tokens one comes with the prompt and one with the verify pass; of a hundred places 95 are taken.
    assert controller.views[0].draft_limits.tolist() == [2, 3]
    assert controller.views[0].tokens_left.tolist() == [3, 39]


def test_a_request_may_ask_for_more_tokens_than_64_bits_hold() -> None:
    controller = Recorder(lengths=[5])
    engine = FakeEngine(controller)
    assert engine.step([Request("a", max_tokens=10**25), Request("b")]).tolist() == [5, 5]
    left, other = controller.views[0].tokens_left.tolist()
    assert left > LIMITS.max_model_len
    assert other == 39


def test_a_request_that_ends_in_the_step_that_runs_has_no_tokens_left() -> None:
    controller = Recorder(lengths=[0, 3])
    engine, last = FakeEngine(controller), Request("a", num_prompt_tokens=1, max_tokens=1)
    engine.schedule([last])
    engine.loop.plan_ahead([last], Queue())
    assert controller.views[-1].tokens_left.tolist() == [0]
    assert controller.views[-1].draft_limits.tolist() == [0]


def test_a_plan_made_ahead_leaves_out_the_token_of_the_step_that_runs() -> None:
    engine, a = FakeEngine(controller := Recorder()), Request("a", max_tokens=9)
    engine.schedule([a])
    engine.loop.plan_ahead([a], Queue())
    assert [view.tokens_left.tolist() for view in controller.views] == [[8], [7]]


def test_an_aborted_request_teaches_nothing() -> None:
    controller = Recorder(lengths=[2, 2])
    engine, a, b = FakeEngine(controller), Request("a"), Request("b")
    engine.step([a, b])
    engine.step([a], accepted={"a": 1})
    (outcome,) = controller.outcomes
    assert outcome.drafted.tolist() == [2, 0]
    assert outcome.accepted.tolist() == [1, 0]
    assert outcome.emitted.tolist() == [2, 0]
    assert outcome.request_ids.tolist() == controller.views[0].request_ids.tolist()


def test_what_follows_a_pause_does_not_close_the_plan_before_it() -> None:
    controller = Recorder(lengths=[2, 2])
    engine = FakeEngine(controller)
    engine.step([Request("a")])
    engine.step([Request("b")])
    assert controller.outcomes == []


def test_steps_that_overlap_are_told_apart() -> None:
    """Async scheduling: a step is scheduled while the one before runs."""
    controller = Recorder(lengths=[2, 4, 0])
    engine, a = FakeEngine(controller), Request("a")
    _, first = engine.schedule([a])
    a.num_output_placeholders = 1
    _, second = engine.schedule([a])
    assert controller.views[1].phase.tolist() == [Phase.DECODE]
    # Of 40 tokens one is under way in the first step and one in the second.
    assert controller.views[1].tokens_left.tolist() == [38]
    engine.loop.finish(engine.numbers.popleft(), result({"a": (first["a"], 0, 1)}), dict)
    engine.loop.settle(Queue())
    assert controller.outcomes == []
    engine.loop.finish(engine.numbers.popleft(), result({"a": (second["a"], 2, 3)}), dict)
    engine.loop.settle(Queue())
    (outcome,) = controller.outcomes
    assert (outcome.step, outcome.drafted.tolist(), outcome.accepted.tolist()) == (0, [2], [2])


def test_what_a_preempted_request_computes_again_is_prefill() -> None:
    controller = Recorder()
    engine, a = FakeEngine(controller), Request("a", num_output_tokens=10)
    engine.schedule([a], chunk=8)
    engine.schedule([a], chunk=8)
    assert [view.phase.tolist() for view in controller.views] == [[Phase.PREFILL], [Phase.DECODE]]
    assert [step.target.prefill_tokens for step in engine.loop._steps.values()] == [8, 6]


def test_an_acceptance_cut_short_shows_no_failure() -> None:
    controller = Recorder(lengths=[4])
    engine, a = FakeEngine(controller), Request("a")
    engine.step([a])
    engine.schedule([a])
    engine.loop.finish(engine.numbers.popleft(), result({"a": (4, 3, 2)}), dict)
    engine.loop.settle(Queue())  # the second token was the end
    (outcome,) = controller.outcomes
    assert outcome.truncated.tolist() == [True]
    assert outcome.accepted.tolist() == [2]


@pytest.mark.parametrize(("emitted", "truncated"), [(1, True), (0, False), (2, False)])
def test_only_an_output_that_ends_at_an_accepted_token_is_truncated(emitted: int, truncated: bool) -> None:
    controller = Recorder(lengths=[4])
    engine, a = FakeEngine(controller), Request("a")
    engine.step([a])
    engine.schedule([a])
    engine.loop.finish(engine.numbers.popleft(), result({"a": (4, 1, emitted)}), dict)
    engine.loop.settle(Queue())
    assert controller.outcomes[0].truncated.tolist() == [truncated]


def test_passes_are_counted_with_their_rows_and_tokens() -> None:
    controller = Recorder(lengths=[0, 0, 2, 0])
    engine, batch = FakeEngine(controller, ON_DEMAND), [Request("a", 1), Request("b", 1)]
    for _ in range(2):
        engine.step(batch)
    added = Request("c", num_prompt_tokens=10)
    engine.step([*batch, added])
    # Three requests, two passes; the first takes the 2 + 10 tokens of the target's pass, less one sampled for each
    # request, and the two tokens that a and b each lag by.
    assert engine.loop._last is not None
    assert engine.loop._last.passes == DrafterPasses(2, 6, 12 - 3 + 4, 4 + 10)
    engine = FakeEngine(controller := Recorder(lengths=[3, 0]))
    engine.step(batch)
    assert engine.loop._last is not None
    assert engine.loop._last.passes == DrafterPasses(2, 4), "the first pass of every step is not counted"
    engine.step(batch)
    (outcome,) = controller.outcomes
    assert outcome.draft_context_tokens == 2 * int(controller.views[0].context_tokens.sum())


@pytest.mark.parametrize(
    ("limits", "rows", "first_pass"),
    [
        pytest.param(replace(ON_DEMAND, parallel_drafter=True), [[2], []], False, id="P-EAGLE"),
        pytest.param(replace(LIMITS, parallel_drafter=True, heads=True), [[2], []], False, id="Medusa"),
        pytest.param(replace(LIMITS, parallel_drafter=True, drafter_is_lookup=True), [[], []], True, id="n-gram"),
    ],
)
def test_a_drafter_of_blocks_has_one_pass_or_none(
    limits: EngineLimits, rows: list[list[int]], first_pass: bool
) -> None:
    controller = Recorder(lengths=[3, 0, 0, 0])
    engine, batch = FakeEngine(controller, limits), [Request("a", 1), Request("b", 1)]
    for _ in range(4):
        engine.step(batch, accepted={"a": 3, "b": 3})
    assert [outcome.draft_rows.tolist() for outcome in controller.outcomes[:2]] == rows
    assert controller.views[0].parallel_drafter
    assert controller.views[0].first_pass_every_step == first_pass


def test_an_id_that_is_used_again_is_a_new_request() -> None:
    engine, a = FakeEngine(controller := Recorder(idle_steps=9), ON_DEMAND), Request("a", num_prompt_tokens=1)
    engine.step([a])
    engine.loop.known.forget(["a"])
    engine.step([Request("a", num_prompt_tokens=1)])
    assert engine.loop.known.numbers[engine.loop.known.rows([a])] == [1]
    assert len(controller.views) == 1, "it joins the reused plan"


def test_a_request_that_must_catch_up_ends_plan_reuse() -> None:
    limits = replace(ON_DEMAND, kept_tokens=100, prefix_caching=True)
    engine, a = FakeEngine(Recorder(idle_steps=9), limits), Request("a")
    skipped, drafted = list[bool](), list[bool]()
    for _ in range(3):
        engine.step([a])
        assert engine.orders is not None
        assert engine.loop._last is not None
        skipped.append(engine.orders.skip)
        drafted.append(engine.loop._last.passes.number > 0)
    # Other requests may reuse the prompt's blocks: the drafter computes them right after the first token.
    assert skipped == [True, False, True]
    assert drafted == [False, True, False], "the drafter's pass is part of a step that reuses a plan"
    assert engine.loop.known.lag_tokens[engine.loop.known.rows([a])] == [1]


GRAPHS = CapturedGraphs(((0, 8), (2, 8), (3, 2)))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_near_its_end_is_padded_so_that_the_step_replays_a_graph(ahead: bool) -> None:
    controller = Recorder(lengths=[0, 3, 0, 2, 0, 1, 0])
    engine, a, b = FakeEngine(controller, graphs=GRAPHS), Request("a"), Request("b", max_tokens=4)
    engine.step([a, b])
    lengths = engine.step([a, b], ahead=ahead)
    assert controller.views[1].draft_limits.tolist() == [5, 1]
    assert controller.views[1].graph_lengths == (0, 2, 3)
    assert lengths.tolist() == [3, 3]
    engine.step([a, b], accepted={"a": 3, "b": 2}, ahead=ahead)
    engine.loop.settle(Queue())
    outcome = controller.outcomes[1]
    assert (outcome.drafted.tolist(), outcome.accepted.tolist()) == ([3, 1], [3, 1]), "padding teaches nothing"
    assert (outcome.tokens_batched, outcome.piecewise) == (8, False)
    for _ in range(5):
        engine.step([a], ahead=ahead)
    engine.loop.settle(Queue())
    alone = [(int(each.drafted.max()), each.piecewise) for each in controller.outcomes[2:] if each.drafted.any()]
    assert alone == [(2, False), (1, True)], "1 has no graph"


@pytest.mark.parametrize(
    ("limits", "ahead"), [(LIMITS, True), (replace(ON_DEMAND, kept_tokens=64), False)], ids=["ahead", "on demand"]
)
def test_plans_made_ahead_and_those_of_a_drafter_on_demand_are_padded_too(limits: EngineLimits, ahead: bool) -> None:
    engine = FakeEngine(Recorder(lengths=[0, 3]), limits, graphs=GRAPHS)
    batch = [Request("a"), Request("b", max_tokens=4)]
    engine.step(batch, ahead=ahead)
    assert engine.step(batch, ahead=ahead).tolist() == [3, 3]


def test_padding_to_one_token_teaches_nothing_either() -> None:
    controller = Recorder(lengths=[0, 1, 0])
    engine = FakeEngine(controller, graphs=CapturedGraphs(((0, 8), (1, 8))))
    batch = [Request("a"), Request("b", max_tokens=3)]
    engine.step(batch)
    assert engine.step(batch).tolist() == [1, 1]
    engine.step(batch, accepted={"a": 1, "b": 1})
    assert controller.outcomes[1].drafted.tolist() == [1, 0]


@pytest.mark.parametrize(("length", "cap"), [(3, 0), (4, 2)])
def test_a_step_whose_requests_verify_different_lengths_replays_no_full_graph(length: int, cap: int) -> None:
    capped = SimpleNamespace(extra_args={"turbospec_max_draft": cap})
    engine = FakeEngine(controller := Recorder(lengths=[length, 0]), graphs=GRAPHS)
    batch = [Request("a"), Request("b", sampling_params=capped)]
    for _ in range(2):
        engine.step(batch)
    assert [outcome.piecewise for outcome in controller.outcomes] == [True]


@pytest.mark.parametrize(("graphs", "prompt"), [(NO_GRAPHS, 1), (GRAPHS, 9)])
def test_a_step_that_would_replay_no_full_graph_anyway_does_not_miss_one(graphs: CapturedGraphs, prompt: int) -> None:
    engine, a = FakeEngine(controller := Recorder(lengths=[3, 0]), graphs=graphs), Request("a")
    engine.step([a])
    engine.step([a, Request("b", num_prompt_tokens=prompt)])
    assert [outcome.piecewise for outcome in controller.outcomes] == [False]


@pytest.mark.parametrize(("graphs", "lengths"), [(GRAPHS, (0, 2)), (CapturedGraphs(((0, 8),)), (0,))])
def test_drafts_may_be_padded_up_to_the_limit_of_a_request(graphs: CapturedGraphs, lengths: tuple[int, ...]) -> None:
    capped = SimpleNamespace(extra_args={"turbospec_max_draft": 2})
    engine = FakeEngine(controller := Recorder(), graphs=graphs)
    engine.step([Request("a", sampling_params=capped)])
    assert controller.views[0].graph_lengths == lengths


def test_graphs_are_for_batches_that_only_decode_and_whose_requests_may_all_be_verified() -> None:
    controller = Recorder()
    engine = FakeEngine(controller, graphs=GRAPHS)
    batch = [Request(name) for name in "abc"]
    engine.step(batch)
    engine.step(batch)
    assert controller.views[-1].graph_lengths == (0, 2), "3 has graphs for two requests"
    engine.step([batch[0], Request("d", num_prompt_tokens=90)])
    assert controller.views[-1].graph_lengths == (), "a part of a prompt is left"
    engine.loop.plan_ahead(batch, Queue(1, 0.0, 1))
    assert controller.views[-1].graph_lengths == (), "a prompt joins the next step"
    capped = Request("e", sampling_params=SimpleNamespace(extra_args={"turbospec_max_draft": 1}))
    for _ in range(2):
        engine.step([batch[0], capped])
    assert controller.views[-1].graph_lengths == (0,)


def test_the_graphs_of_the_target_are_known_when_a_worker_has_reported_them() -> None:
    engine = FakeEngine(controller := Recorder())
    engine.times = StepTimes(0.0, 0.0, 1.0, GRAPHS)
    for _ in range(2):
        engine.step([Request("a")])
    assert [view.graph_lengths for view in controller.views] == [(), (0, 2, 3)]


def test_a_drafter_that_looks_up_has_no_graphs() -> None:
    """It may find fewer tokens than asked for, so that no batch is surely uniform."""
    engine = FakeEngine(controller := Recorder(), replace(LIMITS, drafter_is_lookup=True), graphs=GRAPHS)
    engine.step([Request("a")])
    assert controller.views[0].graph_lengths == ()


def test_views_name_the_largest_graph_of_the_target() -> None:
    engine = FakeEngine(controller := Recorder(), replace(LIMITS, largest_graph=512))
    engine.step([Request("a")])
    assert controller.views[0].largest_graph == 512


@pytest.mark.parametrize("admitted", [0, 1, 2])
def test_prefill_is_the_limit_where_a_step_leaves_requests_waiting_that_lack_nothing_else(admitted: int) -> None:
    loop = VllmLoop(controller := Recorder(), LIMITS)
    loop.plan([Request("a")], {"a": 4}, (), Queue(3, 0.5, admitted), 0.0)
    assert controller.views[0].admitted_requests == admitted
    assert controller.views[0].prefill_limited is (admitted > 0)


@pytest.mark.parametrize(("length", "passes"), [(1, 1), (2, 3), (3, 3), (4, 4)])
def test_the_drafter_runs_the_passes_of_the_plan(length: int, passes: int) -> None:
    engine = FakeEngine(controller := Recorder(lengths=[0, length]), ON_DEMAND)
    engine.times = StepTimes(0.0, 0.0, 1.0, CapturedGraphs((), (0, 1, 3), 2))
    engine.step(batch := [Request("a"), Request("b", max_tokens=4)])
    planned = engine.loop.plan(batch, {"a": 1, "b": 1}, (), Queue(), 0.0)
    assert controller.views[1].drafter_graph_lengths == (0, 1, 3)
    assert (planned.lengths.tolist(), planned.passes) == ([length, 1], passes)
    assert engine.loop._steps[engine.loop.newest].passes[:2] == (passes, 2 * passes)


@pytest.mark.parametrize(
    ("requests", "model_length", "lengths"),
    [(2, 100, (0, 1, 2, 3)), (3, 100, ()), (1, 10, (0, 1, 2, 3)), (1, 9, (0, 1, 2))],
)
def test_a_drafter_has_graphs_for_batches_of_their_size_and_where_its_passes_fit(
    requests: int, model_length: int, lengths: tuple[int, ...]
) -> None:
    engine = FakeEngine(controller := Recorder(), replace(ON_DEMAND, max_model_len=model_length))
    engine.times = StepTimes(0.0, 0.0, 1.0, CapturedGraphs((), (0, 1, 2, 3), 2))
    batch = [Request(str(each)) for each in range(requests)]
    for _ in range(2):
        engine.step(batch)
    assert controller.views[0].drafter_graph_lengths == (), "the worker has not yet reported any"
    assert controller.views[1].drafter_graph_lengths == lengths


def test_no_request_is_padded_beyond_its_own_limit_at_its_end_either() -> None:
    """One token is left: padding past it is allowed, and past its limit it is not."""
    controller = Recorder(lengths=[2, 2])
    engine = FakeEngine(controller, graphs=GRAPHS)
    refuses = SimpleNamespace(extra_args={"turbospec_max_draft": 0})
    batch = [Request("a"), Request("b", max_tokens=2, sampling_params=refuses)]
    assert engine.step(batch).tolist() == [2, 0]
    assert controller.views[0].graph_lengths == (0,)


def test_nobody_is_padded_where_one_cannot_catch_up() -> None:
    """It drafts nothing, so that no graph is replayed: beside 57 tokens of a prompt there is no room for its lag."""
    controller = Recorder(lengths=[0, 0, 2])
    engine = FakeEngine(controller, replace(LIMITS, kept_tokens=64), graphs=GRAPHS)
    a, b = Request("a"), Request("b", num_prompt_tokens=57, max_tokens=2)
    engine.step([a])
    engine.step([a])
    assert engine.step([a, b]).tolist() == [0, 0]
    assert 2 in controller.views[-1].graph_lengths
    assert controller.views[-1].draft_limits.tolist() == [5, 0]


def test_no_pass_runs_where_nobody_can_catch_up() -> None:
    """The plan asks for three passes; beside 57 tokens of a prompt there is no room for the lag of the other."""
    engine = FakeEngine(controller := Recorder(lengths=[0, 0, 2]), replace(LIMITS, kept_tokens=64))
    engine.loop.learn_graphs(CapturedGraphs((), (0, 3), 2))
    a, b = Request("a"), Request("b", num_prompt_tokens=57, max_tokens=2)
    engine.step([a])
    engine.step([a])
    planned = engine.loop.plan([a, b], {"a": 1, "b": 57}, (), Queue(), 0.0)
    assert controller.views[-1].drafter_graph_lengths == (0, 3)
    assert (planned.lengths.tolist(), planned.passes) == ([0, 0], 0)


def test_a_padded_plan_ahead_is_cut_where_a_request_has_come_near_the_models_length() -> None:
    controller = Recorder(lengths=[2, 3, 3])
    engine, a = (
        FakeEngine(controller, replace(LIMITS, max_draft=3, reserved_length=3, max_model_len=19), graphs=GRAPHS),
        Request("a", num_prompt_tokens=9),
    )
    assert engine.step([a], ahead=True).tolist() == [2]
    # Two more tokens than the plan knew of: of 19, 14 are computed.
    assert engine.step([a], accepted={"a": 2}, ahead=True).tolist() == [3]
    assert engine.step([a], ahead=True).max() <= 19 - 16 - 2


def test_a_plan_ahead_is_dropped_where_a_request_resumes_or_the_step_is_another() -> None:
    for resumed, missed in (((), 0), (("a",), 0), ((), 1)):
        controller = Recorder(lengths=[1, 2, 3])
        engine, a = FakeEngine(controller, ON_DEMAND), Request("a", num_prompt_tokens=1)
        engine.step([a], ahead=True)
        engine.loop._next_step += missed
        lengths, *_ = engine.loop.plan([a], {"a": 2}, resumed, Queue(), 0.0)
        assert lengths.tolist() == ([2] if not resumed and not missed else [3])


def test_times_add_up_to_the_clock() -> None:
    controller = Recorder(lengths=[0, 3, 1, 2] * 3)
    engine, a = FakeEngine(controller), Request("a")
    for _ in range(12):
        engine.step([a], accepted={"a": 1})
    for outcome in controller.outcomes:
        assert outcome.step_seconds == outcome.draft_seconds + outcome.verify_seconds
        assert outcome.verify_seconds > 0.0


def test_a_drafter_on_demand_is_seen_with_what_it_lacks() -> None:
    controller = Recorder(lengths=[2, 0, 0, 0, 1, 0])
    engine, a = FakeEngine(controller, replace(ON_DEMAND, kept_tokens=64)), Request("a")
    skipped: list[bool] = []
    for _ in range(6):
        engine.step([a], accepted={"a": 1})
        assert engine.orders is not None
        skipped.append(engine.orders.skip)
    # The first drafts, the second verifies two drafts and accepts one; the fifth catches up.
    assert skipped == [False, True, True, True, False, True]
    assert [view.drafter_lag_tokens.tolist() for view in controller.views] == [[0], [0], [2], [3], [4], [0]]
    assert not any(view.first_pass_every_step for view in controller.views)
    drafting, after, plain, _, caught_up = controller.outcomes
    assert drafting.draft_rows.tolist() == [1, 1]
    assert after.draft_rows.tolist() == plain.draft_rows.tolist() == []
    assert after.draft_seconds == 0.0
    assert (caught_up.draft_rows.tolist(), caught_up.catch_up_tokens) == ([1], 4)


@pytest.mark.parametrize("probe", [False, True])
def test_a_drafter_that_made_only_experiments_for_long_computes_no_prompt(
    probe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turbospec.hosts.vllm.scheduler.drafter_use.CATCH_UP_SHARE", 0.0)
    controller = Recorder(lengths=[0, 0, 0, 0, 0, 0, 2], probe=probe)
    engine, a = FakeEngine(controller, ON_DEMAND), Request("a", num_prompt_tokens=1)
    for _ in range(10):
        engine.step([a])
    engine.step([a, Request("b", num_prompt_tokens=30)])  # longer than what can be caught up
    assert engine.orders is not None
    assert engine.orders.skip == probe


def test_steps_on_a_reused_plan_put_the_drafter_out_of_use_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbospec.hosts.vllm.scheduler.drafter_use.CATCH_UP_SHARE", 0.0)
    engine, a = FakeEngine(Recorder(idle_steps=20), ON_DEMAND), Request("a", num_prompt_tokens=1)
    for _ in range(12):
        engine.step([a])
    engine.step([a, Request("b", num_prompt_tokens=30)])  # longer than what can be caught up
    assert engine.orders is not None
    assert engine.orders.skip


def test_a_pass_that_drafts_costs_nothing_of_what_catching_up_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, a = FakeEngine(Recorder(lengths=[0, 2]), replace(ON_DEMAND, kept_tokens=64)), Request("a")
    spent: list[int] = []
    monkeypatch.setattr(engine.loop._use, "spent", spent.append)
    for _ in range(4):
        engine.step([a])
    assert sum(spent) == 0


def test_a_prompt_that_a_drafter_out_of_use_computes_is_paid_from_what_catching_up_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, a = FakeEngine(Recorder(), ON_DEMAND), Request("a", num_prompt_tokens=1)
    for _ in range(10):
        engine.step([a])
    spent: list[int] = []
    monkeypatch.setattr(engine.loop._use, "spent", spent.append)
    monkeypatch.setattr(engine.loop._use, "_seconds", 60.0)
    engine.step([a, Request("b", num_prompt_tokens=30)])
    assert engine.orders is not None
    assert not engine.orders.skip
    assert spent == [31]


@pytest.mark.parametrize(
    ("kept_tokens", "prefix_caching", "always"),
    [(0, False, True), (0, True, True), (8, False, False), (8, True, True)],
)
def test_a_drafter_that_never_lags_or_whose_blocks_are_shared_reads_every_prompt(
    kept_tokens: int, prefix_caching: bool, always: bool
) -> None:
    limits = replace(LIMITS, kept_tokens=kept_tokens, prefix_caching=prefix_caching)
    engine = FakeEngine(controller := Recorder(), limits)
    engine.step([Request("a")])
    assert controller.views[0].drafter_always_prefills is always


@pytest.mark.parametrize(("limits", "read"), [(ON_DEMAND, [4, 0]), (LIMITS, [0, 0])])
def test_a_view_tells_what_prompts_a_drafter_on_demand_would_read(limits: EngineLimits, read: list[int]) -> None:
    controller = Recorder(lengths=[1, 1])
    engine, a = FakeEngine(controller, limits), Request("a")
    engine.step([a])
    engine.step([a])
    assert [view.drafter_prefill_tokens for view in controller.views] == read


@pytest.mark.parametrize(("step_seconds", "last_limit"), [(0.1, 5), (0.001, 0)])
def test_a_request_can_draft_after_many_steps_without_drafts_unless_catching_up_is_too_dear(
    step_seconds: float, last_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass is taken to last 1.5 ms: little of steps of 100 ms, and more than 2 % of eight steps of 1 ms."""
    clock = itertools.count(1.0, step_seconds)
    monkeypatch.setattr("turbospec.hosts.vllm.scheduler.loop.time.perf_counter", lambda: next(clock))
    controller = Recorder(lengths=[0] * 16 + [3] * 2)
    engine, a = FakeEngine(controller, ON_DEMAND), Request("a")
    engine.began = 1.0
    for _ in range(18):
        engine.step([a])
    # Eight tokens are kept.
    assert int(controller.views[-1].draft_limits[0]) == last_limit
    assert (max(int(view.drafter_lag_tokens[0]) for view in controller.views) <= 8) is (last_limit > 0)


def test_steps_without_drafts_reuse_their_plan() -> None:
    controller = Recorder(idle_steps=3)
    engine, a, b = FakeEngine(controller, replace(ON_DEMAND, kept_tokens=64)), Request("a"), Request("b")
    for _ in range(3):
        engine.step([a])
    assert [view.step for view in controller.views] == [0]
    assert [outcome.step for outcome in controller.outcomes] == [0]
    assert engine.loop.known.lag_tokens[engine.loop.known.rows([a])] == [4 + 2]
    engine.step([a])
    engine.step([a, b])  # half of them came after the plan
    assert [view.step for view in controller.views] == [0, 3, 4]
    engine.step([a, b])
    # One on the old plan, and the one that began the next plan and verified for none.
    assert controller.outcomes[1].reused_plan_steps == 2
    assert controller.outcomes[1].reused_plan_tokens == 2
    assert controller.outcomes[1].reused_plan_seconds > 0.0
    assert controller.outcomes[-1].context_tokens == int(controller.views[-1].context_tokens.sum()) + 2


def test_a_plan_is_not_reused_for_a_request_that_computes_several_tokens() -> None:
    """As one does that was preempted."""
    engine = FakeEngine(Recorder(idle_steps=9))
    engine.step([Request("a")])
    assert engine.loop.reuse_plan({"a": 1}, 0.0) == (True, None)
    assert engine.loop.reuse_plan({"a": 3}, 0.0) == (False, None)


def test_the_context_of_requests_that_have_left_is_not_counted() -> None:
    controller = Recorder(idle_steps=6)
    engine = FakeEngine(controller, replace(ON_DEMAND, kept_tokens=64))
    batch = [Request("long", num_prompt_tokens=30), *map(Request, "abc")]
    engine.step(batch)
    engine.step(batch[1:])
    assert len(controller.views) == 1
    assert controller.outcomes[0].context_tokens == 3 * 5


def test_a_few_newly_admitted_requests_join_a_reused_plan() -> None:
    controller = Recorder(idle_steps=6)
    engine, batch = FakeEngine(controller, ON_DEMAND), [Request(name, num_prompt_tokens=1) for name in "abcdef"]
    engine.step(batch[:4])
    engine.step(batch[:5])
    engine.step(batch[1:5])
    assert len(controller.views) == 1
    engine.step(batch[2:])
    assert len(controller.views) == 2


def test_steps_with_prompts_on_a_reused_plan_are_counted() -> None:
    controller = Recorder(idle_steps=6)
    engine, batch = FakeEngine(controller, replace(ON_DEMAND, kept_tokens=100)), [Request(name) for name in "abcdef"]
    for size in (4, 4, 5, 5, 6):
        engine.step(batch[:size])
    assert [view.step for view in controller.views] == [0, 4]
    engine.step(batch)
    engine.step(batch)
    outcome = controller.outcomes[1]
    assert (outcome.step, outcome.reused_plan_steps) == (4, 3)
    assert (outcome.reused_plan_tokens, outcome.reused_plan_prefill_tokens) == (5 + 5 + 6, 4 + 4)


def test_many_newly_admitted_requests_end_plan_reuse() -> None:
    controller = Recorder(lengths=[0, 2], idle_steps=9)
    engine = FakeEngine(controller, replace(ON_DEMAND, kept_tokens=100, late_drafts=True))
    first = Request("first", num_prompt_tokens=1)
    engine.step([first], ahead=True)
    batch = [first, *(Request(str(number)) for number in range(8))]
    assert engine.step(batch).tolist() == [2] * 9
    assert [(view.step, view.size) for view in controller.views] == [(0, 1), (1, 9)]


def test_a_prompt_in_parts_goes_through_the_drafter_part_by_part() -> None:
    engine = FakeEngine(Recorder(), replace(ON_DEMAND, kept_tokens=100))
    batch = [Request("a"), Request("long", num_prompt_tokens=70)]
    for skip in (False, True, True):
        engine.step(batch)
        assert engine.orders is not None
        assert engine.orders.skip == skip


def test_a_step_too_long_for_the_drafter_is_kept() -> None:
    engine = FakeEngine(Recorder(), replace(ON_DEMAND, kept_tokens=100))
    batch = [Request("a"), Request("b", num_prompt_tokens=LIMITS.max_model_len - LIMITS.max_draft + 1)]
    engine.step(batch)
    engine.step(batch)  # too long for what may be caught up, too
    assert engine.orders is not None
    assert engine.orders.skip


def test_a_plan_with_drafts_is_for_one_step() -> None:
    controller = Recorder(lengths=[2, 2, 2], idle_steps=8)
    engine, a = FakeEngine(controller), Request("a")
    for _ in range(3):
        engine.step([a], accepted={"a": 1})
    assert len(controller.views) == 3


def test_a_step_that_was_planned_ahead_takes_its_plan() -> None:
    controller = Recorder(lengths=[1, 2, 3, 4])
    engine, a, b = FakeEngine(controller, ON_DEMAND), Request("a", num_prompt_tokens=1), Request("b")
    drafted = [engine.step([a, b], accepted={"a": 9}, ahead=True).tolist() for _ in range(3)]
    assert drafted == [[1, 1], [2, 2], [3, 3]]
    assert [view.step for view in controller.views] == [0, 1, 2, 3]
    assert controller.views[1].phase.tolist() == [Phase.DECODE] * 2
    # Outcomes are a step later than they are without.
    assert [outcome.step for outcome in controller.outcomes] == [0]
    assert controller.outcomes[0].accepted.tolist() == [1, 0]


def test_a_plan_ahead_is_cut_to_the_requests_and_tokens_that_are_left() -> None:
    controller = Recorder(lengths=[4, 4, 4])
    engine, a, b = FakeEngine(controller), Request("a", max_tokens=9), Request("b")
    engine.step([a, b], ahead=True)
    # Five of nine tokens are emitted at once, which was not known when the second step was planned.
    engine.step([a, b], accepted={"a": 4}, ahead=True)
    lengths, _ = engine.schedule([a, b])
    assert lengths.tolist() == [1, 4]
    assert [view.step for view in controller.views] == [0, 1, 2]
    engine = FakeEngine(Recorder(lengths=[2, 2]))
    engine.step([a, b], ahead=True)
    assert engine.schedule([b])[0].tolist() == [2]


def test_a_plan_ahead_is_dropped_where_many_requests_are_new() -> None:
    controller = Recorder(lengths=[1, 2, 3])
    engine, a, b = FakeEngine(controller), Request("a"), Request("b")
    engine.step([a], ahead=True)
    assert engine.step([a, b]).tolist() == [3, 3]
    assert [(view.step, view.size) for view in controller.views] == [(0, 1), (1, 1), (1, 2)]


def test_nothing_is_planned_ahead_of_a_prefill_chunk_or_while_a_plan_is_reused() -> None:
    controller = Recorder(lengths=[0, 0])
    engine, batch = FakeEngine(controller), [Request("a"), Request("long", num_prompt_tokens=80)]
    engine.schedule(batch)
    engine.loop.plan_ahead(batch, Queue())
    assert len(controller.views) == 1
    engine = FakeEngine(controller := Recorder(idle_steps=3), ON_DEMAND)
    a = Request("b")
    for _ in range(4):
        engine.step([a], ahead=True)
    assert [view.step for view in controller.views] == [0, 3]


LATE = replace(LIMITS, kept_tokens=64, late_drafts=True)


def test_the_drafter_waits_for_first_tokens_and_for_nothing_else() -> None:
    engine = FakeEngine(controller := Recorder(lengths=[2, 2, 0, 2, 2]), LATE)
    a, late = Request("a"), list[bool]()
    for requests in (
        [a],
        [a],
        [a, Request("b", num_prompt_tokens=40)],
        [a, Request("c", num_prompt_tokens=80)],
        [a, Request("d")],
    ):
        _, verified = engine.schedule(requests)
        engine.finish([a], verified, {})
        assert engine.orders is not None
        late.append(engine.orders.late)
    # The third drafts nothing and has a pass over a prompt that is too long to be caught up; of the fourth's new
    # request, part of the prompt is left.
    assert late == [True, False, True, False, True]
    assert not any(view.draft_before_emit for view in controller.views)


def test_vllm_is_not_asked_for_a_pass_that_it_does_not_run() -> None:
    """It would answer with drafts of zeros."""
    engine, a = FakeEngine(Recorder(lengths=[0, 2, 0]), LATE), Request("a", num_prompt_tokens=93)
    for requests in ([a], [a], [a, Request("b")]):
        _, verified = engine.schedule(requests)
        engine.finish([a], verified, {})
    assert engine.orders is not None
    assert (engine.orders.skip, engine.orders.late) == (True, False)


def test_late_drafts_are_in_the_time_of_the_step_that_verifies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 3.0, 3.5, 6.0])
    monkeypatch.setattr("turbospec.hosts.vllm.scheduler.loop.time.perf_counter", lambda: next(clock))
    engine = FakeEngine(controller := Recorder(lengths=[2, 0, 2, 0]), LATE)
    a = Request("a")
    engine.step([a])
    engine.step([a])
    (outcome,) = controller.outcomes
    assert engine.loop._last is not None
    assert engine.loop._last.passes.number == 0, "the second step has no pass"
    assert outcome.step_seconds == pytest.approx(3.0 - 1.0)
    assert outcome.draft_seconds == 0.0, "it was not measured"
    assert outcome.draft_rows.tolist() == [1, 1]
    b = Request("b")
    engine.step([b])
    engine.began = 5.5  # nothing ran until then: the drafts had long been made
    engine.step([b])
    assert len(controller.outcomes) == 1
    assert engine.loop._reused.steps == 0, "the step verified drafts"


def test_where_tokens_go_first_all_passes_are_in_the_time_of_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model runner V2 on a GPU: the second step has a pass over what it verifies, which runs in the third's time."""
    clock = iter([1.0, 3.0, 4.0])
    monkeypatch.setattr("turbospec.hosts.vllm.scheduler.loop.time.perf_counter", lambda: next(clock))
    limits = replace(ON_DEMAND, tokens_first=True, async_scheduling=True)
    engine = FakeEngine(controller := Recorder(lengths=[2, 0, 0]), limits)
    a = Request("a")
    for _ in range(3):
        engine.step([a])
        assert engine.orders is not None
        assert not engine.orders.late, "nothing is ordered: the runner does so itself"
    assert not any(view.draft_before_emit for view in controller.views)
    first, second = controller.outcomes
    assert first.step_seconds == pytest.approx(3.0 - 1.0), "drafts and their verification, and nothing else"
    assert second.step_seconds == pytest.approx(4.0 - 3.0), "with the pass over the verified drafts: it is not timed"


@pytest.mark.parametrize(("length", "reported"), [(2, 0), (0, 1)])
def test_where_tokens_go_first_the_duration_of_drafts_before_a_pause_is_unknown(
    length: int, reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([1.0, 6.0])
    monkeypatch.setattr("turbospec.hosts.vllm.scheduler.loop.time.perf_counter", lambda: next(clock))
    limits = replace(ON_DEMAND, tokens_first=True, async_scheduling=True)
    engine, a = FakeEngine(controller := Recorder(lengths=[length, 0]), limits), Request("a")
    engine.step([a])
    engine.began = 5.5
    engine.step([a])
    assert len(controller.outcomes) == reported


@pytest.mark.parametrize("limits", [LATE, ON_DEMAND, replace(ON_DEMAND, tokens_first=True)])
def test_the_times_that_a_worker_measures_are_the_outcomes(limits: EngineLimits) -> None:
    engine, a = FakeEngine(controller := Recorder(lengths=[2, 0, 2, 0]), limits), Request("a")
    for times in (StepTimes(9.0, 9.0, 4.0), StepTimes(3.0, 0.5, 5.0), StepTimes(0.125, 0.25, 6.0)):
        engine.times = times
        engine.step([a])
    first, second = controller.outcomes
    assert (first.draft_seconds, first.verify_seconds, first.step_seconds) == (3.0, 5.5, 8.5)
    assert (second.draft_seconds, second.verify_seconds) == (0.0, second.step_seconds)
    # Under sync scheduling the drafter runs no pass in the second step: it keeps inputs, which is the target's time.
    assert second.step_seconds == 6.375
    engine.times, engine.began = StepTimes(2.0, 60.0, 5.0), math.inf  # nothing ran for a minute
    engine.step([a])
    third = controller.outcomes[-1]
    assert (third.draft_seconds, third.verify_seconds, third.step_seconds) == (2.0, 5.0, 7.0)


def test_a_first_pass_in_every_step_is_never_drafting() -> None:
    engine, a = FakeEngine(controller := Recorder(lengths=[2, 0]), LIMITS), Request("a")
    for times in (StepTimes(9.0, 9.0, 4.0), StepTimes(3.0, 0.5, 5.0), StepTimes(1.0, 0.25, 6.0)):
        engine.times = times
        engine.step([a])
    first, second = controller.outcomes
    assert (first.draft_seconds, first.step_seconds) == (0.0, 8.5), "two passes, of which one would have run anyway"
    assert (second.draft_seconds, second.step_seconds) == (0.0, 7.25)


def test_a_plan_ahead_holds_for_a_few_new_requests_whose_first_tokens_need_not_wait() -> None:
    for limits, lengths in ((LATE, (0, 2, 2)), (ON_DEMAND, (0, 0, 0))):
        controller = Recorder(lengths=[*lengths])
        engine, batch = FakeEngine(controller, limits), [Request(name, num_prompt_tokens=1) for name in "abcd"]
        engine.step(batch[:3], ahead=True)
        assert engine.step(batch, ahead=True).tolist() == [lengths[1]] * 4
        assert [view.size for view in controller.views] == [3, 3, 4]
        engine.step(batch)
        engine.loop.settle(Queue())
        assert controller.outcomes[-1].drafted.tolist() == [lengths[1]] * 3, "the new request is in no view yet"


def test_a_new_request_that_ends_with_its_first_token_joins_a_plan_ahead_without_drafts() -> None:
    engine = FakeEngine(Recorder(lengths=[1, 3]), replace(LIMITS, tokens_first=True))
    batch = [Request(name, num_prompt_tokens=1) for name in "abcd"]
    engine.step(batch, ahead=True)
    lengths, _ = engine.schedule([*batch, Request("e", num_prompt_tokens=1, max_tokens=1)])
    assert lengths.tolist() == [3, 3, 3, 3, 0]


def test_a_plan_ahead_with_drafts_is_dropped_where_first_tokens_would_wait() -> None:
    controller = Recorder(lengths=[1, 2, 3, 4])
    engine, batch = FakeEngine(controller, ON_DEMAND), [Request(name, num_prompt_tokens=1) for name in "abcd"]
    engine.step(batch[:3], ahead=True)
    assert engine.step(batch).tolist() == [3] * 4
    engine = FakeEngine(Recorder(lengths=[1, 2, 3, 4]), LATE)
    engine.step(batch[:3], ahead=True)
    lengths, _ = engine.schedule([*batch[:3], Request("e", num_prompt_tokens=80)])
    assert lengths.tolist() == [3, 3, 3, 0], "part of a prompt is left"


def test_nobody_drafts_where_one_is_too_long_for_the_drafter() -> None:
    controller = Recorder(lengths=[5] * 40)
    engine = FakeEngine(controller, replace(LIMITS, max_model_len=60))
    a, b = Request("a", num_prompt_tokens=52), Request("b")
    assert engine.step([a, b]).tolist() == [5, 5]
    engine.step([a, b], accepted={"a": 5})
    assert controller.views[-1].draft_limits.tolist() == [0, 0]
    engine.step([b])
    assert controller.views[-1].draft_limits.tolist() == [5]


def test_a_plan_made_ahead_is_dropped_where_one_has_become_too_long() -> None:
    controller = Recorder(lengths=[5] * 40)
    engine = FakeEngine(controller, replace(LIMITS, max_model_len=60))
    a, b = Request("a", num_prompt_tokens=50), Request("b")
    assert engine.step([a, b], ahead=True).tolist() == [5, 5]
    # With its drafts it has 56 tokens computed, of which the plan for this step could not know.
    assert engine.step([a, b], ahead=True).tolist() == [0, 0]


REPEATED = [1, 2, 3, 4, 5, 6, 7, 8] * 20


def test_a_view_has_what_a_look_up_finds_past_the_tokens_that_are_not_known() -> None:
    """Of six tokens that follow, the step itself emits one."""
    controller = Recorder()
    engine = FakeEngine(controller, lookups=Lookups())
    a, b = Request("a", num_prompt_tokens=10, text=REPEATED), Request("b", num_prompt_tokens=20)
    c = Request("c", num_prompt_tokens=40, text=REPEATED)
    engine.schedule([a, b, c], chunk=30)
    lookup = controller.views[0].lookup
    assert lookup is not None
    assert lookup.lengths.tolist() == [LIMITS.max_draft, 0, 0], "none without a match, nor in prefill"
    assert lookup.scores.tolist() == [2, 0, 0]


def test_a_look_up_is_bound_by_all_limits_but_those_of_the_drafter() -> None:
    controller = Recorder()
    engine = FakeEngine(controller, replace(ON_DEMAND, max_batched_tokens=8), lookups=Lookups())
    a = Request("a", num_prompt_tokens=16, text=REPEATED, max_tokens=4)
    capped = Request("b", num_prompt_tokens=16, text=REPEATED)
    capped.sampling_params = SimpleNamespace(extra_args={"turbospec_max_draft": 1})
    engine.step([a, capped])
    engine.loop.known.lag_since[:] = -1  # too old to be caught up
    engine.loop.known.lag_tokens[:2] = 9
    engine.step([a, capped])
    view = controller.views[1]
    assert view.draft_limits.tolist() == [0, 0]
    assert view.lookup is not None
    assert view.lookup.lengths.tolist() == [1, 1], "two tokens are left to emit after this step; one draft is allowed"


def test_nothing_is_looked_up_for_requests_that_may_draft_nothing() -> None:
    refuses = SimpleNamespace(extra_args={"turbospec_max_draft": 0})
    engine = FakeEngine(controller := Recorder(), lookups=Lookups())
    a = Request("a", num_prompt_tokens=16, text=REPEATED, sampling_params=refuses)
    engine.step([a, Request("b", num_prompt_tokens=16, text=REPEATED, max_tokens=2)])
    lookup = controller.views[0].lookup
    assert lookup is not None
    assert lookup.lengths.tolist() == [0, 0]


def test_a_look_up_looks_no_further_ahead_for_the_tokens_that_a_request_has_emitted() -> None:
    text = [*range(1, 9), *range(20, 26), *range(1, 9)]
    engine = FakeEngine(controller := Recorder(), lookups=Lookups())
    engine.step([Request("a", num_prompt_tokens=10, num_output_tokens=12, text=[*text, 0])])
    lookup = controller.views[0].lookup
    assert lookup is not None
    assert lookup.lengths.tolist() == [5]


def test_drafts_of_a_look_up_are_not_the_drafters() -> None:
    controller = Recorder(sources=Source.LOOKUP)
    engine = FakeEngine(controller, lookups=Lookups())
    a = Request("a", num_prompt_tokens=16, text=REPEATED)
    planned = engine.loop.plan([a], {"a": 16}, (), Queue(), 0.0)
    assert (planned.lengths.tolist(), planned.lookup_lengths.tolist()) == ([0], [5])
    engine = FakeEngine(controller, lookups=Lookups())
    engine.step([a])
    engine.step([a], accepted={"a": 3})
    (outcome,) = controller.outcomes
    assert outcome.sources is not None
    assert outcome.sources.tolist() == [Source.LOOKUP]
    assert (outcome.drafted.tolist(), outcome.accepted.tolist()) == ([5], [3])
    assert len(outcome.draft_rows) == 0, "no pass of the drafter"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_drafts_of_a_look_up_need_no_pass_and_their_requests_catch_up_on_what_is_accepted(asynchronous: bool) -> None:
    controller = Recorder(sources=Source.LOOKUP)
    limits = replace(ON_DEMAND, kept_tokens=100, max_batched_tokens=256, async_scheduling=asynchronous)
    engine = FakeEngine(controller, limits, Lookups())
    a = Request("a", num_prompt_tokens=16, text=REPEATED)
    orders: list[DrafterOrders] = []
    for accepted in (0, 2, 1):
        engine.step([a], accepted={"a": accepted})
        assert engine.orders is not None
        orders.append(engine.orders)
    controller.sources, controller.lengths = None, [3]
    engine.step([a], accepted={"a": 5})
    assert engine.orders is not None
    assert [each.skip for each in orders] == [True] * 3
    assert [each.resolved for each in orders] == [{}, {}, {1: {"a": 3}}]
    assert engine.orders.resolved == {2: {"a": 2}}
    # The prompt, three tokens of the second step and two of the third; of six that the fourth has, none is kept.
    assert engine.orders.catch_up == {"a": KvLag(16 + 3 + 2, since=0)}
    assert controller.views[-1].drafter_lag_tokens.tolist() == [16 + 3 + 2]


def test_what_was_accepted_of_a_look_ups_drafts_counts_beside_one_that_the_drafter_drafts_for() -> None:
    class Mixed(Recorder):
        def plan(self, view: StepView) -> StepPlan:
            self.views.append(view)
            assert view.lookup is not None
            lengths = np.array([view.lookup.lengths[0], 2 * (len(self.views) == 3)])
            return StepPlan(lengths, sources=np.array([Source.LOOKUP, Source.DRAFTER]))

    limits = replace(ON_DEMAND, kept_tokens=100, max_batched_tokens=256, async_scheduling=True)
    engine = FakeEngine(Mixed(), limits, Lookups())
    loop, batch = engine.loop, [Request("a", num_prompt_tokens=16, text=REPEATED), Request("b", text=range(500, 600))]
    engine.step(batch)
    scheduled = {"a": 6, "b": 1}
    orders: list[DrafterOrders | None] = []
    for _ in range(2):
        orders.append(loop.plan(batch, scheduled, (), Queue(), 0.0).orders)
        for request in batch:
            request.num_computed_tokens += scheduled[request.request_id]
            request.num_output_placeholders += scheduled[request.request_id]
    assert orders[1] is not None
    assert (orders[1].skip, orders[1].keep) == (False, {"a"})
    loop.finish(loop.newest - 1, result({}), lambda names: dict.fromkeys(names, 2))
    loop.finish(loop.newest, result({}), lambda names: dict.fromkeys(names, 1))
    rows = loop.known.rows(batch)
    assert loop.known.unresolved[rows].tolist() == [0, 0]
    assert loop.known.lag_tokens[rows].tolist() == [16 + 3 + 2, 0]


@pytest.mark.parametrize(("asynchronous", "found"), [(False, 5), (True, 0)])
def test_after_two_drafts_that_were_rejected_in_full_nothing_is_looked_up_until_the_drafter_can_draft(
    asynchronous: bool, found: int
) -> None:
    limits = replace(ON_DEMAND, kept_tokens=100, max_batched_tokens=256, async_scheduling=asynchronous)
    engine = FakeEngine(controller := Recorder(sources=Source.LOOKUP), limits, Lookups())
    a = Request("a", num_prompt_tokens=16, text=REPEATED)
    for _ in range(3):
        engine.step([a])
    engine.loop.known.unresolved[:] = 1  # as if the last step had not ended
    engine.schedule([a])
    lookup = controller.views[-1].lookup
    assert lookup is not None
    assert lookup.lengths.tolist() == [found]


def test_with_a_look_up_no_step_reuses_a_plan() -> None:
    controller = Recorder(idle_steps=8)
    engine, a = FakeEngine(controller, lookups=Lookups()), Request("a")
    for number in range(1, 5):
        engine.step([a], ahead=True)
        assert len(controller.views) == 1 + number, "the first step is planned when it is scheduled, the others ahead"


def test_a_plan_made_ahead_looks_past_the_drafts_that_its_step_verifies() -> None:
    """The last 8 of 26 tokens occurred before, and 10 tokens followed them."""
    text = [*range(10, 18), 1, 2, 3, 4, 5, 6, 7, 8, 90, 91, 1, 2, 3, 4, 5, 6, 7, 8, *range(200, 400)]
    found: list[int] = []
    for length, source in ((0, None), (3, None), (4, None), (5, None), (5, Source.LOOKUP)):
        controller = Recorder(lengths=[length], sources=source)
        engine, a = FakeEngine(controller, lookups=Lookups()), Request("a", num_prompt_tokens=26, text=text)
        engine.step([a], ahead=True)
        lookup = controller.views[1].lookup
        assert lookup is not None
        found.append(int(lookup.lengths[0]))
    # The step that runs emits one of the 10, the next one its drafts and one more.
    assert LIMITS.max_draft == 5
    assert found == [5, 5, 4, 3, 3]


def test_drafts_of_a_look_up_that_were_planned_ahead_belong_to_the_same_requests() -> None:
    controller = Recorder(sources=Source.LOOKUP)
    engine = FakeEngine(controller, replace(LIMITS, tokens_first=True), lookups=Lookups())
    a, b = Request("a", num_prompt_tokens=16, text=REPEATED), Request("b", num_prompt_tokens=16)
    c, d, e = (Request(name, num_prompt_tokens=16, text=REPEATED) for name in "cde")
    engine.step([a, b, c, d], ahead=True)
    assert len(controller.views) == 2
    scheduled = dict.fromkeys("dcbea", 1)
    scheduled["e"] = 16
    planned = engine.loop.plan([d, c, b, e, a], scheduled, (), Queue(), 0.0)
    assert len(controller.views) == 2
    assert planned.lookup_lengths.tolist() == [5, 5, 0, 0, 5], "what is found for the new request is not known"
    assert planned.lengths.tolist() == [0] * 5


def test_a_plan_made_ahead_with_both_sources_keeps_each_requests_own() -> None:
    class Mixed(Recorder):
        def plan(self, view: StepView) -> StepPlan:
            self.views.append(view)
            assert view.lookup is not None
            lengths = np.array([min(1, view.lookup.lengths[0]), 3])
            return StepPlan(lengths, sources=np.array([Source.LOOKUP, Source.DRAFTER]))

    engine = FakeEngine(Mixed(), lookups=Lookups())
    a, b = Request("a", num_prompt_tokens=16, text=REPEATED), Request("b", num_prompt_tokens=16)
    engine.step([a, b], ahead=True)
    planned = engine.loop.plan([b, a], {"b": 1, "a": 1}, (), Queue(), 0.0)
    assert (planned.lengths.tolist(), planned.lookup_lengths.tolist()) == ([3, 0], [0, 1])


def test_a_request_that_starts_anew_is_indexed_anew() -> None:
    controller = Recorder()
    lookups = Lookups()
    engine, a = FakeEngine(controller, lookups=lookups), Request("a", num_prompt_tokens=16, text=REPEATED)
    engine.step([a])
    a.text = [*range(100, 116), *REPEATED[16:]]
    a.num_computed_tokens = 0
    engine.loop.plan([a], {"a": 17}, {"a"}, Queue(), 0.0)
    lookup = controller.views[-1].lookup
    assert lookup is not None
    assert lookup.lengths.tolist() == [0]
    lookups.forget(["a", "nobody"])
    assert lookups._rows == {}


@pytest.mark.parametrize(("asynchronous", "found"), [(False, 5), (True, 0)])
def test_under_async_scheduling_there_are_no_look_ups_beside_a_grammar(asynchronous: bool, found: int) -> None:
    controller = Recorder()
    engine = FakeEngine(controller, replace(LIMITS, async_scheduling=asynchronous), lookups=Lookups())
    a, b = Request("a", num_prompt_tokens=16, text=REPEATED), Request("b", use_structured_output=True)
    engine.schedule([a, b])
    lookup = controller.views[0].lookup
    assert lookup is not None
    assert lookup.lengths.tolist() == [found, 0]


def test_a_step_with_drafts_of_a_look_up_is_not_padded() -> None:
    """Fewer tokens may be found when the drafts are verified, so that the batch is not surely uniform."""

    class Padded(Recorder):
        def plan(self, view: StepView) -> StepPlan:
            plan = super().plan(view)
            plan.padded_length = 5
            return plan

    controller = Padded(sources=Source.LOOKUP)
    engine = FakeEngine(controller, lookups=Lookups(), graphs=CapturedGraphs(((0, 8), (5, 8))))
    a = Request("a", num_prompt_tokens=16, text=REPEATED)
    assert engine.loop.plan([a], {"a": 16}, (), Queue(), 0.0).lengths.tolist() == [0]
