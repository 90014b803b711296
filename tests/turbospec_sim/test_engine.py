from __future__ import annotations

import math
import signal
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turbospec_sim.scenarios import RandomPolicy, Steps, closed, scenario, serve, state_of
from turbospec import UserError
from turbospec.interface import Phase, Policy, StepOutcome, StepPlan, StepView
from turbospec.policy import load_policy
from turbospec.policy.static import StaticPolicy
from turbospec_sim.oracle import OraclePolicy
from turbospec_sim.records import RUNNING
from turbospec_sim.run import Run, simulate
from turbospec_sim.state import EngineState

ORDERS = ("before_draft", "after_draft")
DRAFTERS = (
    {"kind": "sequential", "batch": True, "max_draft": 5},
    {"kind": "sequential", "batch": False, "max_draft": 5},
    {"kind": "sequential", "batch": True, "max_draft": 5, "first_pass_every_step": True},
    {"kind": "parallel", "batch": True, "max_draft": 5},
    {"kind": "parallel", "batch": False, "max_draft": 5, "first_pass_every_step": True},
)


REPEATS = {
    "repeat_tokens": {"distribution": "geometric", "mean": 12},
    "gap_tokens": {"distribution": "lognormal", "mean": 8, "sigma": 0.5},
    "min_match": 2,
    "false_match": 0.2,
    "false_acceptance": 0.3,
}


class Invariants:
    """What must hold after every step."""

    def __init__(self, state: EngineState, budget: int) -> None:
        self.state, self.budget = state, budget
        self.newest = -1

    def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
        state, engine = self.state, self.state.engine[0]
        held = state.requests["blocks"]
        assert (held >= 0).all()
        of_drafter = state.requests["draft_blocks"]
        assert (of_drafter >= 0).all()
        assert of_drafter.sum() == engine["draft_blocks"]
        taken = held.sum() + math.ceil(engine["draft_kv_share"] * of_drafter.sum() - 1e-9)
        running = state.requests[state.arrays.queues[RUNNING, : engine["running"]]]
        shared = engine["shared_blocks"].sum()
        assert shared == max(running["shared_tokens"], default=0) // engine["block_size"]  # of one class
        assert taken + shared + engine["free_blocks"] == engine["num_blocks"]
        assert engine["running"] + engine["preempted"] + engine["free_slots"] == engine["max_num_seqs"]
        assert len(set(view.request_ids.tolist())) == view.size <= engine["max_num_seqs"]
        # A step's drafts are part of its budget where they are made before it is scheduled.
        drafts = 0 if engine["draft_before_emit"] else int(outcome.drafted.sum())
        assert outcome.tokens_batched - drafts <= self.budget
        assert (outcome.accepted <= outcome.drafted).all()
        assert (outcome.drafted <= plan.draft_lengths).all()
        assert (view.draft_limits[view.phase == Phase.PREFILL] == 0).all()
        fresh = view.request_ids[view.request_ids > self.newest]
        assert (np.diff(fresh) > 0).all()  # admitted in the order of arrival
        self.newest = max([self.newest, *fresh.tolist()])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    order=st.sampled_from(ORDERS),
    drafter=st.sampled_from(DRAFTERS),
    places=st.integers(1, 12),
    budget=st.integers(8, 400),
    blocks=st.integers(24, 120),
    rate=st.sampled_from([1.0, 30.0, 1000.0]),
    max_tokens=st.sampled_from([None, 64]),
    cached=st.sampled_from([0.0, 0.7]),
    in_common=st.booleans(),
    lookup=st.booleans(),
    kv_share=st.sampled_from([0.0, 0.3, 1.0]),
    memory=st.sampled_from(["shared", "reserved"]),
)
def test_every_request_is_served_whole_whatever_the_policy(
    seed: int,
    order: str,
    drafter: dict[str, Any],
    places: int,
    budget: int,
    blocks: int,
    rate: float,
    max_tokens: int | None,
    cached: float,
    in_common: bool,
    lookup: bool,
    kv_share: float,
    memory: str,
) -> None:
    made = scenario(
        server={
            "emit": order,
            "max_num_seqs": places,
            "max_num_batched_tokens": budget,
            "kv_cache_tokens": blocks * 16,
        },
        drafter=drafter | {"kv_share": kv_share, "memory": memory},
        rates=[rate],
        chat__max_tokens=max_tokens,
        chat__cached_share=cached,
        chat__cached_in_common=in_common,
        chat__lookup=REPEATS if lookup else None,
    )
    state = state_of(made, seed)
    steps = Steps()
    serve(state, RandomPolicy(seed), Invariants(state, budget), steps)
    engine, offered = state.engine[0], state.offered
    assert (engine["finished"], engine["failed"]) == (len(offered), 0)
    assert engine["free_blocks"] == engine["num_blocks"]
    assert engine["free_slots"] == places
    assert np.isfinite(offered["latency"]).all()
    assert (offered["ttft"] > 0.0).all()
    assert (offered["latency"] >= offered["ttft"]).all()
    # Outcomes report every token, except those of a step whose requests were all finished: it has no plan.
    if order == "before_draft":
        assert sum(int(outcome.emitted.sum()) for _, _, outcome in steps.seen) == offered["output_tokens"].sum()


def test_a_full_cache_preempts_and_loses_no_token() -> None:
    made = scenario(server__kv_cache_tokens=1600, server__max_num_seqs=12, rates=[1000.0])
    state = state_of(made)
    serve(state, StaticPolicy(3), Invariants(state, 512))
    assert state.engine["preemptions"][0] > 0
    assert state.engine["finished"][0] == len(state.offered)


def test_a_shared_prefix_takes_its_blocks_once() -> None:
    """Of 40 blocks the prefix takes 20, and the rest of each prompt 5."""
    made = closed(
        12,
        server__kv_cache_tokens=640,
        chat__prompt_tokens={"distribution": "constant", "tokens": 400},
        chat__output_tokens={"distribution": "constant", "tokens": 16},
        chat__cached_share=0.8,
        chat__cached_in_common=True,
    )
    state, steps = state_of(made), Steps()
    serve(state, StaticPolicy(0), Invariants(state, 512), steps)
    assert max(view.size for view, _, _ in steps.seen) == 4


def test_requests_that_fit_no_cache_are_refused_and_the_others_served() -> None:
    for made in (scenario(server__kv_cache_tokens=256), closed(3, server__kv_cache_tokens=256)):
        row = simulate(Run("s", made, "off", made.rates[0] if made.rates else None, 0))
        assert row["failed"] > 0
        assert row["completed"] > 0
        assert row["completed"] + row["failed"] == 60


def decode_steps(order: str, policy: Policy) -> list[tuple[StepView, StepPlan, StepOutcome]]:
    """Steps without prefill of a server with graphs for lengths 0, 1 and 3; without one a step takes 10 ms more."""
    made = closed(
        8,
        server__emit=order,
        latency__graph_lengths=[0, 1, 3],
        latency__piecewise_seconds=0.008,
        latency__piecewise_request_seconds=0.001,
        chat__output_tokens={"distribution": "uniform", "low": 5, "high": 40},
    )
    recorded: list[tuple[StepView, StepPlan, StepOutcome]] = []

    class Recorder:
        def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
            recorded.append((view, plan, outcome))

    serve(state_of(made), policy, Recorder())
    return [(v, p, o) for v, p, o in recorded if not o.prefill_tokens and v.size == int((o.emitted > 0).sum())]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_padded_step_replays_a_full_graph(order: str, length: int) -> None:
    steps = decode_steps(order, StaticPolicy(length))
    cut = 0
    for view, plan, outcome in steps:
        if not view.graph_lengths or not plan.draft_lengths.any():
            continue
        uniform = bool((plan.draft_lengths == length).all())
        cut += not uniform
        assert plan.padded_length == (0 if length == 2 else length)
        assert outcome.piecewise == (length == 2)
        assert outcome.drafted.sum() == plan.draft_lengths.sum()
        verified = length * view.size if plan.padded_length else int(plan.draft_lengths.sum())
        assert outcome.tokens_batched == view.size + verified
        missed = 0.008 + 0.001 * view.size if outcome.piecewise else 0.0
        assert outcome.verify_seconds == pytest.approx(0.02 + 1e-4 * outcome.tokens_batched + missed, rel=1e-9)
    assert cut > 5 or length < 2, "requests near their end are part of the test"


@pytest.mark.parametrize("order", ORDERS)
def test_unequal_drafts_miss_their_graph(order: str) -> None:
    steps = decode_steps(order, RandomPolicy(3))
    unequal = [outcome for view, _, outcome in steps if view.graph_lengths and len(set(outcome.drafted.tolist())) > 1]
    assert len(unequal) > 20
    assert all(outcome.piecewise for outcome in unequal)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_lone_request_takes_what_the_coefficients_say(order: str, length: int, rate: float) -> None:
    made = closed(
        1,
        server__emit=order,
        drafter={"max_draft": 5, "batch": False},
        workload__requests=1,
        chat__prompt_tokens={"distribution": "constant", "tokens": 100},
        chat__output_tokens={"distribution": "constant", "tokens": 41},
        chat__acceptance={"process": "iid", "rate": rate},
    )
    state = state_of(made)
    serve(state, StaticPolicy(length))

    def target(tokens: int) -> float:
        return 1e-3 + 0.02 + 1e-4 * tokens

    def drafting(drafts: int, caught_up: int) -> float:
        return 5e-4 + drafts * (2e-3 + 1e-5) + 1e-6 * caught_up if drafts else 0.0

    times, emitted, caught_up = [target(100)], 1, 99
    first = times[0] + (drafting(length, caught_up) if order == "after_draft" else 0.0)
    while emitted < 41:
        drafts = min(length, 41 - emitted - 1)
        times.append(drafting(drafts, caught_up) + target(1 + drafts))
        emitted += 1 + (drafts if rate else 0)
        caught_up = 0 if drafts else caught_up
    assert state.offered["ttft"][0] == pytest.approx(first, rel=1e-12)
    assert state.offered["latency"][0] == pytest.approx(sum(times), rel=1e-12)


def test_a_long_prompt_is_cut_to_the_budget() -> None:
    made = closed(
        1,
        workload__requests=1,
        server__max_num_batched_tokens=64,
        chat__prompt_tokens={"distribution": "constant", "tokens": 150},
        chat__output_tokens={"distribution": "constant", "tokens": 1},
    )
    state = state_of(made)
    serve(state, StaticPolicy(0))
    assert state.offered["ttft"][0] == pytest.approx(sum(0.021 + 1e-4 * tokens for tokens in (64, 64, 22)), rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_passes_without_a_fitting_graph_take_longer(order: str) -> None:
    """Those with prompts, those over more tokens than any graph, and first passes of the drafter that catch up."""
    more = {"prompt_seconds": 0.004, "graph_sizes": [40], "ungraphed_seconds": 0.03, "catch_up_seconds": 0.002}
    made = closed(8, server__emit=order, **{f"latency__{name}": value for name, value in more.items()})
    steps, kinds = Steps(), set()
    serve(state_of(made), StaticPolicy(5), steps)
    for _, _, outcome in steps.seen:
        prompts, large = outcome.prefill_tokens > 0, outcome.tokens_batched > 40
        expected = 0.02 + 1e-4 * outcome.padded_tokens + 0.004 * prompts + 0.03 * large
        assert outcome.verify_seconds == pytest.approx(expected)
        if len(outcome.draft_rows):
            expected = 5e-4 + 2e-3 * len(outcome.draft_rows) + 1e-5 * outcome.draft_rows.sum()
            expected += 1e-6 * outcome.catch_up_tokens + 0.002 * (outcome.catch_up_tokens > 0)
            assert outcome.draft_seconds == pytest.approx(expected)
        kinds.add((prompts, large, outcome.catch_up_tokens > 0))
    assert len(kinds) >= 5


def test_a_prompt_in_the_cache_is_not_computed() -> None:
    made = closed(
        1,
        workload__requests=1,
        chat__prompt_tokens={"distribution": "constant", "tokens": 200},
        chat__output_tokens={"distribution": "constant", "tokens": 1},
        chat__cached_share=0.5,
    )
    state = state_of(made)
    serve(state, StaticPolicy(0))
    assert state.offered["ttft"][0] == pytest.approx(0.021 + 1e-4 * (200 - 96), rel=1e-12)  # whole blocks of 16


def test_prompts_slow_down_the_requests_that_decode_beside_them() -> None:
    def longest_gap(**changes: Any) -> float:
        made = scenario(rates=[5.0], chat__prompt_tokens={"distribution": "constant", "tokens": 400}, **changes)
        return simulate(Run("s", made, "off", 5.0, 0))["p99_itl_ms"]

    assert longest_gap() > longest_gap(server__long_prefill_token_threshold=32) + 10.0


def test_a_first_pass_in_every_step_takes_time_without_drafts() -> None:
    plain = simulate(Run("s", closed(4), "off", None, 0))
    every_step = simulate(Run("s", closed(4, drafter__first_pass_every_step=True), "off", None, 0))
    added = every_step["mean_tpot_ms"] - plain["mean_tpot_ms"]
    assert added == pytest.approx(2.0, abs=0.25)


def test_a_batch_drafter_pays_for_the_longest_draft_of_any() -> None:
    class OneDrafts:
        def plan(self, view: StepView) -> StepPlan:
            lengths = np.zeros(view.size, np.int64)
            lengths[:1] = view.draft_limits[:1]
            return StepPlan(lengths)

        def observe(self, outcome: StepOutcome) -> None:
            pass

    for batch in (True, False):
        state, steps = state_of(closed(4, drafter__batch=batch)), Steps()
        serve(state, OneDrafts(), steps)
        whole = [(view.size, outcome) for view, _, outcome in steps.seen if outcome.drafted.sum() == 5]
        rows = [(size, outcome.draft_rows.tolist()) for size, outcome in whole]
        assert rows
        assert all(passes == [size if batch else 1] * 5 for size, passes in rows)


@pytest.mark.parametrize("policy", ["static-3", "adaptive", "ema-tiers", "oracle"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_same_seed_gives_the_same_row(policy: str, order: str) -> None:
    made = scenario(server__emit=order, latency__noise=0.1, workload__warmup_requests=3)
    rows = [simulate(Run("s", made, policy, 20.0, 7)) for _ in range(2)]
    for row in rows:
        del row["wall_seconds"]
    assert repr(rows[0]) == repr(rows[1])
    other = simulate(Run("s", made, policy, 20.0, 8))
    assert other["mean_e2el_ms"] != rows[0]["mean_e2el_ms"]


@pytest.mark.parametrize(
    "process",
    [
        {"process": "iid", "rate": 0.7},
        {"process": "markov", "good": [0.9], "bad": [0.1], "good_tokens": 12, "bad_tokens": 6},
        {"process": "drift", "before": [0.9], "after": [0.1], "begin_seconds": 0, "end_seconds": 3},
    ],
)
def test_all_policies_face_the_same_text(process: dict[str, Any]) -> None:
    judged: list[dict[tuple[int, int], bool]] = []
    for policy in (StaticPolicy(1), StaticPolicy(5), load_policy("adaptive"), RandomPolicy(3)):
        steps = Steps()
        serve(state_of(scenario(chat__acceptance=process)), policy, steps)
        judged.append(steps.acceptances())
    for other in judged[1:]:
        common = judged[0].keys() & other.keys()
        assert len(common) > 300
        assert all(judged[0][place] == other[place] for place in common)


def test_a_stop_before_the_limit_is_no_failure_of_the_drafter() -> None:
    steps = Steps()
    always = {"process": "iid", "rate": 1.0}
    made = closed(4, chat__max_tokens=200, chat__acceptance=always, server__emit="before_draft")
    serve(state_of(made), StaticPolicy(5), steps)
    truncated = sum(int(outcome.truncated.sum()) for _, _, outcome in steps.seen)
    assert truncated > 10
    assert all(steps.acceptances().values())


def test_warm_up_comes_before_the_clock_starts() -> None:
    made = scenario(workload__warmup_requests=5)
    row = simulate(Run("s", made, "off", 20.0, 0))
    assert row["completed"] == 60
    state = state_of(made)
    engine = serve(state, StaticPolicy(0))
    assert engine.measured_from == pytest.approx(float(state.offered["latency"][:5].max()))
    assert (state.offered["sent"][5:] >= engine.measured_from).all()
    # Without drafts every token after a request's first is an emission of its own.
    assert state.gaps.sum() == state.totals["gaps"][0] == (state.offered["output_tokens"][5:] - 1).sum()


def test_preemptions_of_the_warm_up_are_not_counted() -> None:
    crowded = {"server__kv_cache_tokens": 1600, "server__max_num_seqs": 12, "workload__warmup_requests": 40}
    assert simulate(Run("s", scenario(**crowded, workload__requests=1), "off", 20.0, 0))["preemptions"] == 0


def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    state, steps = state_of(closed(6)), Steps()
    serve(state, StaticPolicy(0), steps)
    done = np.sort(state.offered["sent"] + state.offered["latency"])
    assert np.allclose(np.sort(state.offered["sent"])[6:], done[: len(done) - 6])
    assert max(view.size for view, _, _ in steps.seen) == 6


def test_a_clock_that_runs_away_ends_the_run() -> None:
    slow = scenario(latency__kv_token_seconds=1e6, latency__attention_pair_seconds=1e6, workload__requests=300)
    with pytest.raises(UserError, match="the simulated clock passed"):
        serve(state_of(slow), StaticPolicy(3))


def test_steps_without_time_are_counted_all_the_same() -> None:
    nothing = {"source": "coefficients", "verify_floor_seconds": 0, "verify_token_seconds": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = simulate(Run("s", closed(4, latency=nothing), "static-3", None, 0))
    assert row["completed"] == 60


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    order=st.sampled_from(ORDERS),
    drafter=st.sampled_from(DRAFTERS),
    clients=st.integers(1, 20),
    noise=st.sampled_from([0.0, 0.2]),
)
def test_tokens_and_time_add_up(seed: int, order: str, drafter: dict[str, Any], clients: int, noise: float) -> None:
    state = state_of(closed(clients, server__emit=order, drafter=drafter, latency__noise=noise), seed)
    steps = Steps()
    engine = serve(state, RandomPolicy(seed), steps)
    sums, requests = state.totals[0], len(state.offered)
    assert state.engine["preemptions"][0] == 0
    # A request's first token comes of its prompt; every step after it brings one, and the drafts it accepts.
    assert state.offered["output_tokens"].sum() == requests + sums["decode_rows"] + sums["accepted"]
    assert sums["accepted"] == sum(int(outcome.accepted.sum()) for _, _, outcome in steps.seen)
    assert sums["drafted"] == sum(int(outcome.drafted.sum()) for _, _, outcome in steps.seen)
    assert sums["prefill_tokens"] == state.offered["prompt_tokens"].sum()
    # A closed loop is never idle, so that the parts of the steps fill the whole run.
    parts = sums["host_seconds"] + sums["draft_seconds"] + sums["verify_seconds"]
    assert parts == pytest.approx(engine.now, rel=1e-9)
    assert sums["running_seconds"] + sums["waiting_seconds"] <= clients * engine.now * (1 + 1e-9)
    assert sums["gaps"] == state.gaps.sum() <= sums["decode_rows"]


def test_an_interruption_is_kept_until_the_step_is_over() -> None:
    steps = Steps()

    class Interrupts:
        def on_step(self, view: StepView, plan: StepPlan, outcome: StepOutcome, decision_seconds: float) -> None:
            if len(steps.seen) == 5:
                signal.raise_signal(signal.SIGINT)

    state, handler = state_of(scenario()), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        serve(state, StaticPolicy(3), steps, Interrupts())
    assert len(steps.seen) == 5
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_view_says_who_joins_the_next_step_and_which_prompts_the_drafter_computes() -> None:
    made = scenario(
        server={"emit": "after_draft", "max_num_seqs": 8, "max_num_batched_tokens": 256, "kv_cache_tokens": 100_000},
        drafter={"kind": "sequential", "batch": True, "max_draft": 5},
        rates=[40.0],
        chat__output_tokens={"distribution": "uniform", "low": 2, "high": 60},
    )
    steps = Steps()
    serve(state_of(made), StaticPolicy(3), steps)
    views = [view for view, _, _ in steps.seen]
    assert any(view.admitted_requests for view in views)
    assert any(view.waiting_requests and not view.admitted_requests for view in views), "no free batch slot"
    for view in views:
        assert view.admitted_requests <= min(view.waiting_requests, 8)
    computed = 0
    for view, plan, outcome in steps.seen:
        if plan.draft_lengths.any() and not view.drafter_lag_tokens.any():
            # The ordinary tokens of a first pass do not count as caught up.
            assert -2 * view.size <= outcome.catch_up_tokens - view.drafter_prefill_tokens <= 0
            computed += view.drafter_prefill_tokens
    assert computed > 1000


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_oracle_knows_what_a_step_takes(order: str, drafter: dict[str, Any]) -> None:
    made = closed(
        6,
        server__emit=order,
        drafter=drafter,
        latency__sampled_token_seconds=3e-4,
        latency__graph_sizes=[16],
        latency__ungraphed_seconds=2e-3,
        chat__prompt_tokens={"distribution": "constant", "tokens": 30},
        chat__output_tokens={"distribution": "constant", "tokens": 40},
    )
    state, steps, compared = state_of(made), Steps(), 0
    serve(state, OraclePolicy(state), steps)
    # Any pass computes the last tokens of a prompt, and one of a parallel drafter those just accepted. A pass that runs
    # in every step may run over the requests of the next one.
    error = 2e-4 if drafter.get("first_pass_every_step") else 3e-5
    for view, plan, outcome in steps.seen:
        as_planned = (outcome.emitted > 0).all() and (outcome.drafted == plan.draft_lengths).all()
        if view.size == 6 and plan.draft_lengths.any() and not outcome.prefill_tokens and as_planned:
            assert outcome.step_seconds == pytest.approx(plan.predicted_seconds, abs=error)
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("server", "limited"),
    [
        ({"max_num_batched_tokens": 64}, True),
        ({"max_num_batched_tokens": 8192}, False),
        ({"max_num_batched_tokens": 8192, "max_num_seqs": 4}, False),
        ({"max_num_batched_tokens": 8192, "kv_cache_tokens": 640}, False),
    ],
    ids=["token budget", "room for all", "batch slots", "KV blocks"],
)
def test_prefill_is_the_limit_where_the_token_budget_leaves_requests_waiting(
    order: str, server: dict[str, Any], limited: bool
) -> None:
    steps = Steps()
    made = closed(12, server={"emit": order, "max_num_seqs": 16, "kv_cache_tokens": 100_000} | server)
    serve(state_of(made), StaticPolicy(0), steps)
    views = [view for view, _, _ in steps.seen]
    assert any(view.waiting_requests for view in views) == (server != {"max_num_batched_tokens": 8192})
    assert (sum(view.prefill_limited for view in views) > len(views) / 3) is limited
    assert limited or not any(view.admitted_requests for view in views)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("memory", "kv_cache_tokens", "priced"),
    [("shared", 640, True), ("shared", 100_000, False), ("reserved", 640, False)],
)
def test_a_view_names_the_drafters_memory_where_it_keeps_requests_waiting(
    order: str, memory: str, kv_cache_tokens: int, priced: bool
) -> None:
    steps = Steps()
    made = closed(
        12,
        server={"emit": order, "max_num_seqs": 16, "kv_cache_tokens": kv_cache_tokens},
        drafter={"max_draft": 3, "kv_share": 0.25, "memory": memory},
    )
    serve(state_of(made), StaticPolicy(0), steps)
    shares = [view.drafter_kv_share for view, _, _ in steps.seen]
    assert {*shares} <= {0.0, 0.25}
    assert (shares.count(0.25) > len(shares) / 2) is any(shares) is priced
