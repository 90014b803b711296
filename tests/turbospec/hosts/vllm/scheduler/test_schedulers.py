"""TurboSpec's schedulers on a stand-in for vLLM's: what happens where they fail, and cases that fuzzing found."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.turbospec.hosts.vllm.fuzzing import server as stand_in_server
from tests.turbospec.hosts.vllm.fuzzing.server import Added, Setup, StandIn
from tests.turbospec.hosts.vllm.scheduler.test_loop import OneToken, Recorder
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.shared import metrics_file
from turbospec.hosts.vllm.shared.drafter_orders import DRAFTS_ATTRIBUTE, orders_of
from turbospec.hosts.vllm.shared.lookup_drafts import lookup_drafts_of
from turbospec.hosts.vllm.shared.metrics_file import METRICS_FILE_VARIABLE
from turbospec.interface import Source

K = 5
"""vLLM's own."""
OFF = "version: 1\npolicy: off\n"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METRICS_FILE_VARIABLE, raising=False)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """TurboSpec's, in the order in which they are logged."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    log = logging.getLogger("turbospec")
    log.addHandler(handler)
    yield messages
    log.removeHandler(handler)


class Engine:
    """An engine core and its worker, in which every draft is rejected."""

    def __init__(self, folder: Path, **setup: Any) -> None:
        file = folder / "policy.yaml"
        file.write_text(OFF)
        self.server = StandIn(Setup(policy=file, longest=K, **setup), random.Random(0))
        self.server.build(lambda base: base)
        self.scheduler = self.server.scheduler

    def plan(self, *lengths: int, idle_steps: int = 1) -> Recorder:
        """Have the loop plan these lengths, and then 0."""
        controller = Recorder(lengths=[*lengths], idle_steps=idle_steps)
        loop = self.scheduler._loop
        self.scheduler._loop = VllmLoop(controller, loop.limits, loop.lookups)
        return controller

    def add(self, name: str, prompt: int = 4, max_tokens: int = 40, **extra: Any) -> Any:
        params = SimpleNamespace(extra_args=extra.pop("extra_args", None))
        self.server.add(Added(name, prompt, max_tokens, params, 0.0, **extra))
        return self.scheduler.requests[name]

    def schedule(self) -> Any:
        output = self.scheduler.schedule()
        self.scheduler.get_grammar_bitmask(output)
        return output

    def finish(self, output: Any, *, token: int = 1, drafts: bool = True) -> None:
        names = list(output.num_scheduled_tokens)
        chunks = {name for name in names if self.scheduler.requests[name].is_prefill_chunk}
        made = self.server.model_output(names, [[] if name in chunks else [token] for name in names])
        self.scheduler.update_from_output(output, made)
        longest = output.num_spec_tokens_to_schedule
        self.server.post_step(
            lambda: self.server.drafts(names, [[1] * longest for _ in names]) if drafts else None, bool(names)
        )

    def step(self, **finish: Any) -> Any:
        output = self.schedule()
        self.finish(output, **finish)
        return output


class Graphs(Enum):
    """vLLM's `CUDAGraphMode`, as far as it is read."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (2, 0)
    FULL_AND_PIECEWISE = (2, 1)

    def decode_mode(self) -> Graphs:
        return Graphs(self.value[0] if isinstance(self.value, tuple) else self.value)

    def __bool__(self) -> bool:
        return self is not Graphs.NONE


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn.hosted.current_platform, "is_cpu", lambda: False)


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda loop: setattr(loop.known, "forget", fail), id="known.forget"),
        pytest.param(lambda loop: setattr(loop, "reuse_plan", fail), id="reuse_plan"),
        pytest.param(lambda loop: setattr(loop, "plan", fail), id="plan"),
        pytest.param(lambda loop: setattr(loop, "finish", fail), id="finish"),
        pytest.param(lambda loop: setattr(loop, "settle", fail), id="settle"),
        pytest.param(lambda loop: setattr(loop.controller, "plan", fail), id="controller.plan"),
        pytest.param(lambda loop: setattr(loop.controller, "observe", fail), id="controller.observe"),
    ],
)
def test_an_error_of_turbospec_stays_in_its_boundary(
    spoil: Callable[[VllmLoop], None], asynchronous: bool, tmp_path: Path, warnings: list[str]
) -> None:
    """vLLM goes on with its own draft length, and a burst of errors is one warning."""
    engine = Engine(tmp_path, asynchronous=asynchronous)
    request = engine.add("a")
    engine.plan(2, 2, 2, 2, 2)
    engine.step()
    spoil(engine.scheduler._loop)
    for _ in range(3):
        engine.step()
    assert request.num_output_tokens == 4
    assert engine.scheduler._faults > 0
    assert warnings == ["TurboSpec failed in a step; the step runs with vLLM's own draft length"]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("own_table", [False, True])
def test_graphs_that_do_not_hold_all_requests_are_named_once(
    own_table: bool, tmp_path: Path, warnings: list[str]
) -> None:
    config = {"v2": True, "own_table": own_table, "max_num_seqs": 64, "max_num_batched_tokens": 512}
    Engine(tmp_path, **config, graphs=Graphs.FULL_AND_PIECEWISE, graph_sizes=(64, 384))
    assert warnings == []
    Engine(tmp_path, **config, graphs=Graphs.FULL_AND_PIECEWISE, graph_sizes=(64, 192))
    lengths = "5 up to 32" if own_table else "3 up to 48, 5 up to 32"
    assert [each.partition("for drafts of ")[2].partition(" of 64 ")[0] for each in warnings] == [lengths]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("mode", "warned", "largest", "tokens_first"),
    [
        (None, True, 0, False),
        (Graphs.NONE, True, 0, False),
        (Graphs.PIECEWISE, True, 64, False),
        (Graphs.FULL, False, 64, True),
        (Graphs.FULL_DECODE_ONLY, True, 64, True),
        (Graphs.FULL_AND_PIECEWISE, False, 64, True),
    ],
)
def test_what_follows_from_the_mode_of_the_graphs(
    mode: Graphs | None, warned: bool, largest: int, tokens_first: bool, tmp_path: Path, warnings: list[str]
) -> None:
    engine = Engine(tmp_path, v2=True, method="eagle3", max_num_seqs=8, graphs=mode, graph_sizes=(64,))
    limits = engine.scheduler._loop.limits
    assert (len(warnings), limits.largest_graph, limits.tokens_first) == (warned, largest, tokens_first)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_kept_for_a_session_between_two_turns(asynchronous: bool, tmp_path: Path) -> None:
    engine = Engine(tmp_path, asynchronous=asynchronous)
    engine.add("a", max_tokens=4, session=True)
    engine.add("b")
    engine.plan()
    known = engine.scheduler._loop.known
    for _ in range(3):
        engine.step()
    assert (known.lag_tokens[[known.row("a"), known.row("b")]] > 0).all()
    while engine.scheduler.requests["a"].num_output_tokens < 4:
        engine.step()
    engine.step()
    assert "a" in known
    assert known.lag_tokens[known.row("a")] == 0 < known.lag_tokens[known.row("b")]


def test_a_pass_without_drafts_is_asked_for_where_first_tokens_go_first(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.add("a")
    engine.plan(2, 2)
    engine.step()
    engine.step()
    engine.add("b", prompt=40)  # too long to be caught up later
    output = engine.schedule()
    assert (output.num_spec_tokens_to_schedule, orders_of(output).late) == (0, True)
    assert engine.scheduler.must_fetch_drafts
    engine.finish(output)
    assert not any(request.spec_token_ids for request in engine.scheduler.requests.values())


def test_a_step_that_cannot_be_planned_is_vllms_own(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.add("a")
    engine.scheduler._loop.plan = fail
    output = engine.schedule()
    assert output.num_spec_tokens_to_schedule == K
    assert orders_of(output) is None
    assert engine.scheduler.must_fetch_drafts
    engine.finish(output)
    assert len(engine.scheduler.requests["a"].spec_token_ids) == K


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], bool]:
    """Whether the metrics have a line, at the latest after ten seconds."""
    path = tmp_path / "metrics.prom"
    monkeypatch.setattr(metrics_file, "EVERY_SECONDS", 0.0)
    monkeypatch.setenv(METRICS_FILE_VARIABLE, str(path))

    def have(line: str) -> bool:
        ends = time.monotonic() + 10.0
        while time.monotonic() < ends:
            if path.exists() and line in path.read_text().splitlines():
                return True
            time.sleep(0.01)
        return False

    return have


def test_a_turbospec_that_is_off_for_good_says_so_in_its_metrics(
    tmp_path: Path, warnings: list[str], metrics: Callable[[str], bool]
) -> None:
    scheduler = Engine(tmp_path).scheduler
    assert metrics("turbospec_active 1.0")
    for _ in range(99):
        scheduler._fail()
    assert scheduler._loop is not None
    scheduler._fail()
    assert scheduler._loop is None
    assert "off until the server restarts" in warnings[-1]
    assert metrics("turbospec_active 0.0")
    assert metrics("turbospec_host_faults_total 100.0")


@pytest.mark.parametrize("failing", ["read_settings", "VllmLoop"])
def test_a_turbospec_that_cannot_start_says_so_in_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metrics: Callable[[str], bool], failing: str
) -> None:
    monkeypatch.setattr(StandIn.hosted, failing, fail)
    assert Engine(tmp_path).scheduler._loop is None
    assert metrics("turbospec_active 0.0")


def test_counts_are_there_before_the_first_step(tmp_path: Path, metrics: Callable[[str], bool]) -> None:
    """Prometheus sees no increase in a series that begins above 0."""
    Engine(tmp_path)
    assert metrics("turbospec_host_faults_total 0.0")
    for position in range(K):
        assert metrics(f'turbospec_accepted_per_position_total{{position="{position}"}} 0.0')


def test_the_queue_tells_how_many_requests_wait_for_nothing_but_room_in_a_step(tmp_path: Path) -> None:
    engine = Engine(tmp_path, max_num_seqs=6)
    scheduler: Any = engine.scheduler
    for name in "ab":
        engine.add(name)
    engine.step()
    waiting = [engine.add(name) for name in "cdefg"]
    queue = scheduler._queue()
    assert (queue.requests, queue.admitted) == (5, 4), "two slots of six are taken"
    assert queue.waiting_seconds > 0
    scheduler.num_waiting_for_streaming_input = 1
    assert scheduler._queue().admitted == 3
    scheduler.deferred_waiting = {waiting[0], waiting[2], waiting[3]}
    queue = scheduler._queue()
    assert (queue.requests, queue.admitted) == (5, 2)
    manager = scheduler.kv_cache_manager
    manager.watermark_blocks = manager.block_pool.get_num_free_blocks() - 3
    scheduler.deferred_waiting = set()
    assert scheduler._queue().admitted == 3, "each needs one of three blocks"
    scheduler.kv_cache_config.kv_cache_groups = ["some layers", "the others"]
    assert scheduler._queue().admitted == 1
    waiting[0].num_preemptions = 1
    assert scheduler._queue().waiting_seconds == 0, "since when it waits is not known"


def test_drafts_end_where_the_shorter_of_both_models_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Engine(tmp_path).scheduler._loop.limits.max_model_len == 100
    configured = stand_in_server._configuration

    def short_drafter(*args: Any) -> Any:
        config = configured(*args)
        config.speculative_config.draft_model_config = SimpleNamespace(
            max_model_len=30, use_mla=False, hf_text_config=SimpleNamespace()
        )
        return config

    monkeypatch.setattr(stand_in_server, "_configuration", short_drafter)
    assert Engine(tmp_path).scheduler._loop.limits.max_model_len == 30


@pytest.mark.parametrize(
    ("setup", "reserved"), [({}, K), ({"method": "dflash"}, K + 1), ({"method": "dflash", "v2": True}, 0)]
)
def test_a_request_keeps_room_for_the_longest_draft(setup: dict[str, Any], reserved: int, tmp_path: Path) -> None:
    """A block of DFlash begins with a token of the request."""
    assert Engine(tmp_path, **setup).scheduler._loop.limits.reserved_length == reserved


def test_a_new_request_does_not_end_a_plan_made_ahead(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    controller = engine.plan()
    for name in "abcd":
        engine.add(name)
    engine.step()
    engine.add("e")
    engine.step()
    assert [view.step for view in controller.views] == [0, 1, 2], "no step was planned twice"


def test_drafts_are_cut_although_a_later_part_of_their_step_fails(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    a, b = engine.add("a"), engine.add("b", extra_args={"turbospec_max_draft": 1})
    engine.plan(3)
    engine.scheduler._loop.settle = fail
    engine.step()
    assert engine.scheduler._faults == 1
    assert [len(request.spec_token_ids) for request in (a, b)] == [3, 1]


def test_drafts_that_come_with_the_tokens_are_vllms_to_take(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    request = engine.add("a")
    engine.plan(2)
    output = engine.schedule()
    made = engine.server.model_output(["a"], [[1]])
    setattr(made, DRAFTS_ATTRIBUTE, engine.server.drafts(["a"], [[1, 1, 1]]))
    engine.scheduler.update_from_output(output, made)
    assert request.spec_token_ids == [1, 1]
    engine.server.post_step(lambda: pytest.fail("the engine core asks for drafts that it has"), True)


def test_errors_that_do_not_end_turn_turbospec_off(tmp_path: Path, warnings: list[str]) -> None:
    engine = Engine(tmp_path, max_model_len=400)
    engine.add("a", max_tokens=300)
    engine.scheduler._loop.plan = fail
    for _ in range(150):
        output = engine.step(drafts=False)
    assert engine.scheduler._loop is None
    assert len(warnings) == 2
    assert "off until the server restarts" in warnings[1]
    assert output.num_spec_tokens_to_schedule == K
    engine.scheduler.shutdown()


def test_errors_far_apart_do_not_turn_turbospec_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn.hosted, "MAX_FAULTS", 3)
    monkeypatch.setattr(StandIn.hosted, "HEALTHY_STEPS", 4)
    engine = Engine(tmp_path)
    engine.add("a")
    for _ in range(3):
        for _ in range(2):
            engine.scheduler._fail()
        for _ in range(4):
            engine.step()
    for healthy_steps in (3, 3, 0):
        assert engine.scheduler._loop is not None
        engine.scheduler._fail()
        for _ in range(healthy_steps):
            engine.step()
    assert engine.scheduler._loop is None, "a burst goes on where the steps between two errors are few"


@pytest.mark.parametrize("own_table", [False, True])
def test_a_policy_that_is_gone_when_the_model_is_loaded_leaves_the_server_to_vllm(
    own_table: bool, tmp_path: Path, warnings: list[str]
) -> None:
    setup = Setup(policy=tmp_path / "gone.yaml", longest=K, own_table=own_table)
    server = StandIn(setup, random.Random(0))
    server.build(lambda base: base)
    assert server.scheduler._loop is None
    assert len(warnings) == 1
    assert warnings[0].startswith("TurboSpec is off, vLLM keeps its own draft length: ")
    assert "gone.yaml" in warnings[0]
    server.add(Added("a", 4, 40, None, 0.0))
    output = server.scheduler.schedule()
    assert output.num_spec_tokens_to_schedule == K, "not what TurboSpec's table for CUDA graphs has for one request"
    server.scheduler.update_from_output(output, server.model_output(["a"], [[1]]))
    server.scheduler.shutdown()


def test_an_error_at_the_start_leaves_the_server_to_vllm(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(OFF)
    server = StandIn(Setup(policy=tmp_path / "policy.yaml", longest=K), random.Random(0))
    monkeypatch.setattr(StandIn.hosted, "kept_tokens", fail)
    server.build(lambda base: base)
    assert server.scheduler._loop is None
    assert warnings == ["TurboSpec cannot start and is off; vLLM keeps its own draft length"]
    server.add(Added("a", 4, 40, None, 0.0))
    assert server.scheduler.schedule().num_spec_tokens_to_schedule == K


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("setup", "warns"),
    [
        ({"max_num_seqs": 2}, True),
        ({"max_num_seqs": 2, "own_table": True}, False),
        ({"max_num_seqs": 2, "v2": False}, False),
        ({"max_num_seqs": 2, "method": "ngram"}, False),
        ({"max_num_seqs": 8}, False),
    ],
)
def test_graphs_that_few_requests_lack_are_named(
    setup: dict[str, Any], warns: bool, tmp_path: Path, warnings: list[str]
) -> None:
    Engine(tmp_path, **{"v2": True, "graphs": Graphs.FULL_AND_PIECEWISE, "graph_sizes": (64,)} | setup)
    assert len(warnings) == warns
    assert all("full CUDA graphs for draft lengths 0, 5 only" in each for each in warnings)


def test_a_trace_that_cannot_be_written_any_more_is_left_out(tmp_path: Path, warnings: list[str]) -> None:
    engine = Engine(tmp_path, trace=tmp_path)
    assert engine.scheduler._loop is not None
    assert len(warnings) == 1
    assert warnings[0].startswith("there is no trace: ")


@pytest.mark.parametrize("v2", [False, True])
def test_who_was_preempted_lacks_nothing_in_the_drafters_cache(v2: bool, tmp_path: Path) -> None:
    """Model runner V2 gets it as a new request. It must not catch up tokens that it computes again."""
    engine = Engine(tmp_path, v2=v2)
    engine.add("a", prompt=1)
    controller = engine.plan(0, 0, 0, 0, 2)
    for _ in range(3):
        engine.step()
    assert controller.views[-1].drafter_lag_tokens.tolist() == [3]
    engine.scheduler.reset_prefix_cache()
    output = engine.scheduler.schedule()
    assert controller.views[-1].drafter_lag_tokens.tolist() == [0]
    assert output.num_spec_tokens_to_schedule == 2
    orders = orders_of(output)
    assert orders is not None
    assert not orders.catch_up


def test_a_token_at_a_time_is_no_reason_to_overlook_a_preemption(tmp_path: Path) -> None:
    """With async scheduling, one token of a prompt may be computed, dropped and computed again."""
    engine = Engine(tmp_path, asynchronous=True)
    engine.add("a", prompt=1)
    engine.plan(idle_steps=9)
    engine.schedule()
    engine.scheduler.reset_prefix_cache()
    engine.schedule()
    known = engine.scheduler._loop.known
    assert known.lag_tokens[known._rows["a"]] == 1


def test_a_session_goes_on_without_the_drafts_after_its_last_turn(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    session = engine.add("a", session=True, extra_args={"turbospec_max_draft": 4})
    engine.plan(3, 0, 0)
    engine.step(token=0)  # the token that ends a turn; its drafts come after it
    assert session.spec_token_ids
    session.sampling_params = SimpleNamespace(extra_args={"turbospec_max_draft": 2})
    engine.server.next_turn("a", 4, 40)
    engine.step()
    assert engine.scheduler._loop.known.max_draft[engine.scheduler._loop.known._rows["a"]] == 2
    assert engine.schedule().scheduled_spec_decode_tokens == {}


def test_an_id_that_is_used_again_at_once_does_not_take_over_the_plan(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.add("a", prompt=1)
    controller = engine.plan(0, 2, 1)
    engine.step()
    assert controller.views[-1].request_ids.tolist() == [0]  # planned ahead
    engine.server.abort(["a"])
    engine.add("a", prompt=1)
    output = engine.scheduler.schedule()
    assert controller.views[-1].request_ids.tolist() == [1]
    assert output.num_spec_tokens_to_schedule == 1


def test_drafts_of_a_request_that_waits_are_not_taken_for_those_of_a_later_plan(tmp_path: Path) -> None:
    """A plan is made ahead for two requests, and its step has room for one of them."""
    engine = Engine(tmp_path, max_num_batched_tokens=10)
    engine.add("a", prompt=1)
    engine.add("b", prompt=1)
    controller = engine.plan(3, 2, 1, 0)
    engine.step()
    engine.scheduler.max_num_scheduled_tokens = 5
    waits = engine.step()
    assert waits.num_scheduled_tokens == {"a": 4}
    engine.scheduler.max_num_scheduled_tokens = 10
    late = engine.step()
    assert [len(drafts) for drafts in late.scheduled_spec_decode_tokens.values()] == [2, 3]
    engine.step()
    drafted = {outcome.step: outcome.drafted.tolist() for outcome in controller.outcomes}
    assert drafted == {0: [3, 0], 1: [2, 0]}


def beside_a_prompt(engine: Engine, trim: OneToken, *, asynchronous: bool = False) -> tuple[Recorder, Any, Any]:
    """Plan three draft tokens for the only request, and schedule the step that makes them and the one that verifies
    them, which a prompt of six tokens joins. Under async scheduling the first step is still under way then."""
    controller = engine.plan(3, 3, 2)
    controller.trim = trim
    first = engine.schedule()
    engine.add("b", prompt=6)
    if not asynchronous:
        engine.finish(first)
    return controller, first, engine.schedule()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_drafts_are_shortened_beside_a_prompt_that_has_joined(asynchronous: bool, tmp_path: Path) -> None:
    engine, trim = Engine(tmp_path, asynchronous=asynchronous), OneToken()
    request = engine.add("a", prompt=1)
    controller, first, second = beside_a_prompt(engine, trim, asynchronous=asynchronous)
    assert trim.calls == [([3], 10)]
    assert second.num_scheduled_tokens == {"a": 2, "b": 6}
    assert second.total_num_scheduled_tokens == 8
    assert [len(each) for each in second.scheduled_spec_decode_tokens.values()] == [1]
    if asynchronous:
        assert request.num_output_placeholders == 3, "two steps, one of them with a draft token"
        engine.finish(first)
    engine.finish(second)
    assert request.num_computed_tokens == request.num_tokens - 1 + request.num_output_placeholders
    engine.step()
    assert controller.outcomes[0].drafted.tolist() == [1]
    assert controller.outcomes[0].tokens_batched == 8


def test_a_draft_of_which_nothing_is_left_is_no_draft(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.add("a", prompt=1)
    controller, _, output = beside_a_prompt(engine, OneToken(keeps=0))
    engine.finish(output)
    assert (output.num_scheduled_tokens, output.scheduled_spec_decode_tokens) == ({"a": 1, "b": 6}, {})
    engine.step()
    assert controller.outcomes[0].drafted.tolist() == [0]


@pytest.mark.parametrize("name", ["connector", "ec_connector", "aux_output_connector"])
def test_with_a_connector_drafts_stay_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the step's output by then."""
    monkeypatch.setattr(f"tests.turbospec.hosts.vllm.fuzzing.stand_in.Scheduler.{name}", object(), raising=False)
    engine, trim = Engine(tmp_path), OneToken()
    engine.add("a", prompt=1)
    controller, _, output = beside_a_prompt(engine, trim)
    assert output.num_scheduled_tokens == {"a": 4, "b": 6}
    assert trim.calls == []
    assert not any(view.calls_trim for view in controller.views)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_draft_that_a_grammar_has_cut_is_not_shortened(asynchronous: bool, tmp_path: Path) -> None:
    """Under async scheduling vLLM checks drafts only after the step is scheduled."""
    engine, trim = Engine(tmp_path, asynchronous=asynchronous), OneToken()
    engine.add("a", prompt=1, grammar=True)
    engine.server.unblock("a")
    engine.scheduler._valid = lambda request, drafts: drafts[:2]
    _, _, output = beside_a_prompt(engine, trim, asynchronous=asynchronous)
    assert len(trim.calls) == 1
    assert output.num_scheduled_tokens["a"] == (2 if asynchronous else 3)


@pytest.mark.parametrize(
    ("made", "valid", "reported"),
    [
        pytest.param(3, 3, 3, id="nothing"),
        pytest.param(3, 2, 3, id="the last token"),
        pytest.param(3, 0, 1, id="all"),
        pytest.param(2, 2, 2, id="nothing of a draft that is shorter than its plan"),
        pytest.param(5, 5, 3, id="nothing of a draft that is longer than its plan"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_first_token_that_a_grammar_rules_out_is_reported_as_rejected(
    made: int, valid: int, reported: int, asynchronous: bool, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, asynchronous=asynchronous)
    request = engine.add("a", prompt=1, grammar=True)
    engine.server.unblock("a")
    engine.scheduler._valid = lambda request, drafts: drafts[:valid]
    controller, drafts = engine.plan(3, 0), engine.server.drafts(["a"], [[1] * made])
    first = engine.schedule()
    if asynchronous:
        verifies = engine.schedule()
        engine.finish(first)
        engine.scheduler.update_draft_token_ids_in_output(drafts, verifies)
    else:
        engine.finish(first, drafts=False)
        engine.scheduler.update_draft_token_ids(drafts)
        verifies = engine.schedule()
        assert len(verifies.scheduled_spec_decode_tokens.get("a", ())) == min(valid, 3)
    engine.finish(verifies)
    engine.step()
    outcome = controller.outcomes[0]
    assert (outcome.drafted.tolist(), outcome.accepted.tolist()) == ([reported], [0])
    assert request.use_structured_output


def test_drafts_of_a_step_without_grammars_are_not_searched_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take time for each request, while the workers wait."""
    engine = Engine(tmp_path)
    engine.add("a")
    engine.plan(2, 2, 2)
    monkeypatch.setattr(StandIn.hosted, "drafts_under_grammar", fail)
    for _ in range(4):
        engine.step()
    assert engine.scheduler._faults == 0


def test_a_draft_that_is_shortened_after_a_grammar_has_cut_it_has_no_certain_rejection(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    request = engine.add("a", prompt=1, grammar=True)
    engine.server.unblock("a")
    engine.scheduler._valid = lambda request, drafts: drafts[:2]
    controller = engine.plan(3, 0)
    engine.step()
    request.spec_token_ids = request.spec_token_ids[:1]
    engine.step()
    engine.step()
    assert controller.outcomes[0].drafted.tolist() == [1]


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The text of all requests."""
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 20
    monkeypatch.setattr("tests.turbospec.hosts.vllm.fuzzing.stand_in.TEXT", text)
    return text


def test_a_step_verifies_what_is_found_when_it_is_scheduled(tmp_path: Path, repeated: list[int]) -> None:
    engine = Engine(tmp_path, lookup=True)
    request = engine.add("a", prompt=16)
    controller = engine.plan()
    controller.sources = Source.LOOKUP
    first = engine.step()
    assert first.num_spec_tokens_to_schedule == 0, "the drafter drafts nothing"
    assert request.spec_token_ids == []
    output = engine.schedule()
    assert output.scheduled_spec_decode_tokens == {"a": repeated[17:22]}
    assert lookup_drafts_of(output) == {"a": (17, repeated[17:22])}
    assert not hasattr(first, "turbospec_lookup_drafts")


def test_drafts_of_the_drafter_stay_beside_those_of_the_look_up(tmp_path: Path, repeated: list[int]) -> None:
    engine = Engine(tmp_path, lookup=True)
    engine.add("a", prompt=16)
    engine.add("b", prompt=16)
    controller: Any = engine.plan()
    controller.sources = [Source.LOOKUP, Source.DRAFTER]
    engine.step()
    output = engine.schedule()
    assert output.scheduled_spec_decode_tokens == {"a": repeated[17:22], "b": [1] * K}
    assert lookup_drafts_of(output).keys() == {"a"}


def test_the_text_of_a_request_that_has_ended_is_forgotten(tmp_path: Path, repeated: list[int]) -> None:
    engine = Engine(tmp_path, lookup=True)
    engine.add("a", prompt=16, max_tokens=3)
    engine.add("b", prompt=16)
    engine.plan().sources = Source.LOOKUP
    for _ in range(5):
        engine.step()
    assert engine.scheduler._loop.lookups._rows.keys() == {"b"}


def test_under_async_scheduling_the_draft_begins_after_the_step_in_flight(tmp_path: Path, repeated: list[int]) -> None:
    """Its tokens are not known when the next step is scheduled: all that is expected of both is sent."""
    engine = Engine(tmp_path, lookup=True, asynchronous=True)
    engine.add("a", prompt=16)
    engine.plan().sources = Source.LOOKUP
    first = engine.schedule()
    second = engine.schedule()
    assert second.scheduled_spec_decode_tokens == {"a": [-1] * 5}
    assert lookup_drafts_of(second) == {"a": (16, repeated[16:22])}, "one token of the first step"
    engine.finish(first, drafts=False)
    third = engine.schedule()
    assert lookup_drafts_of(third) == {"a": (17, repeated[17:28])}, "up to six of the second"
    assert third.scheduled_spec_decode_tokens == {"a": [-1] * 5}


def test_a_match_that_is_gone_leaves_no_draft(
    tmp_path: Path, repeated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path, lookup=True)
    engine.add("a", prompt=16)
    engine.plan().sources = Source.LOOKUP
    engine.step()
    repeated[16] = 99
    output = engine.schedule()
    assert output.scheduled_spec_decode_tokens == {}
    assert lookup_drafts_of(output) == {}


def test_a_draft_ends_before_the_request_does(tmp_path: Path, repeated: list[int]) -> None:
    engine = Engine(tmp_path, lookup=True)
    engine.add("a", prompt=16, max_tokens=5)
    engine.plan().sources = Source.LOOKUP
    engine.step()
    assert engine.step().scheduled_spec_decode_tokens == {"a": repeated[17:20]}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_drafts_without_room_in_their_step_are_dropped(asynchronous: bool, tmp_path: Path, repeated: list[int]) -> None:
    """A worker gets the look-up's tokens for the step for which they were looked up."""
    engine = Engine(tmp_path, lookup=True, asynchronous=asynchronous, max_num_batched_tokens=40)
    engine.add("a", prompt=16)
    request = engine.add("b", prompt=16)
    engine.plan().sources = Source.LOOKUP
    engine.schedule() if asynchronous else engine.step()
    engine.scheduler.max_num_scheduled_tokens = 7
    output = engine.schedule()
    assert output.num_scheduled_tokens == {"a": 6}
    assert lookup_drafts_of(output).keys() == {"a"}
    assert request.spec_token_ids == []


def test_an_error_in_a_look_up_costs_one_steps_drafts(tmp_path: Path, repeated: list[int], warnings: list[str]) -> None:
    engine = Engine(tmp_path, lookup=True)
    request = engine.add("a", prompt=16)
    engine.plan().sources = Source.LOOKUP
    engine.step()
    lookups = engine.scheduler._loop.lookups
    find, lookups.find = lookups.find, fail
    output = engine.scheduler.schedule()
    assert (output.scheduled_spec_decode_tokens, lookup_drafts_of(output)) == ({}, {})
    assert warnings == ["TurboSpec failed in a step; the step runs with vLLM's own draft length"]
    lookups.find = find
    engine.finish(output)
    for _ in range(3):
        output = engine.step()
    assert lookup_drafts_of(output)
    assert request.num_output_tokens == 5
