"""What a drafter is given, against one that ran in every step; without vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.drafter_orders import ORDERS_ATTRIBUTE, DrafterOrders, KvLag  # noqa: E402
from turbospec.hosts.vllm.worker.drafter_on_demand import DrafterOnDemand, install  # noqa: E402

BLOCK_SIZE, HIDDEN_SIZE = 4, 2
BLOCKS = {"a": [5, 0, 3, 7], "b": [1, 9, 2, 4]}


@dataclass
class Metadata:
    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    num_actual_tokens: int
    max_query_len: int
    block_table_tensor: Any
    slot_mapping: Any
    _num_computed_tokens_cache: Any = None

    def batch_size(self) -> int:
        return len(self.seq_lens)


class Drafter:
    """Writes what it is given for each slot of a cache, and drafts nothing of interest."""

    block_size = BLOCK_SIZE
    num_speculative_tokens = 0
    _last_draft_probs = None

    def __init__(self, pass_hidden_states_to_model: bool) -> None:
        self.pass_hidden_states_to_model = pass_hidden_states_to_model
        self.cache: dict[int, tuple[int, int, tuple[float, ...]]] = {}
        self.calls: list[dict[str, Any]] = []

    def propose(self, **given: Any) -> Any:
        metadata = given["common_attn_metadata"]
        self.calls.append(given)
        rows = zip(metadata.slot_mapping.tolist(), given["target_token_ids"].tolist(), strict=True)
        for place, (slot, token) in enumerate(rows):
            hidden = tuple(given["target_hidden_states"][place].tolist()) if self.pass_hidden_states_to_model else ()
            self.cache[slot] = token, int(given["target_positions"][place]), hidden
        return torch.zeros(metadata.batch_size(), given["num_speculative_tokens"], dtype=torch.int64)


class Runner:
    """Runs steps of requests whose token at position p is 100·number + p."""

    def __init__(
        self,
        drafter: Drafter,
        *,
        on_demand: bool,
        asynchronous: bool = False,
        is_hybrid: bool = False,
        workers: int = 1,
    ) -> None:
        self.drafter = drafter
        self.drafter_fits = True
        self.input_batch = SimpleNamespace(req_ids=[])
        self.input_ids = SimpleNamespace(gpu=torch.zeros(16, dtype=torch.int64))
        self.use_async_scheduling = asynchronous
        self.parallel_config = SimpleNamespace(tensor_parallel_size=workers)
        self.model_config = SimpleNamespace(is_hybrid=is_hybrid, is_attention_free=False)
        self.speculative_config: str | None = "set"
        self.execute_model_state: Any = None
        self.speculated: list[bool] = []
        """Of each step, while it was executed and while it was sampled."""
        if on_demand:
            install(self)

    def execute_model(self, output: Any, given: tuple[Any, ...]) -> None:
        self.speculated.append(self.speculative_config is not None)
        self.execute_model_state = SimpleNamespace(
            scheduler_output=output, given=given, hidden_states=None, aux_hidden_states=given[4]
        )

    def sample_tokens(self, _: None) -> Any:
        state, self.execute_model_state = self.execute_model_state, None
        if state is None:
            return None
        self.speculated.append(self.speculative_config is not None)
        if self.speculative_config is None or not self.drafter_fits:
            return None
        return self.propose_draft_token_ids(state.scheduler_output, *state.given)

    def _prepare_inputs(self, output: Any, num_scheduled: Any) -> str | None:
        if num_scheduled is None:
            raise ValueError("nothing is scheduled")
        return self.speculative_config

    def propose_draft_token_ids(self, output: Any, *given: Any) -> Any:
        _, _, _, _, aux_hidden, _, metadata, length, positions, to_sample = given
        self.input_batch.req_ids[:] = []  # by now the next step may be under preparation
        return self.drafter.propose(
            num_speculative_tokens=length,
            target_token_ids=self.input_ids.gpu[: len(positions)],
            target_positions=positions,
            target_hidden_states=torch.cat(aux_hidden, dim=-1),
            next_token_ids=torch.zeros(metadata.batch_size()),
            token_indices_to_sample=to_sample,
            common_attn_metadata=metadata,
            sampling_metadata=None,
        )

    def step(
        self,
        orders: DrafterOrders | None,
        length: int = 0,
        to_sample: Any = None,
        verified: dict[str, list[int]] | None = None,
        **step: range,
    ) -> Any:
        self.input_batch.req_ids[:] = list(step)
        lengths = {name: len(each) for name, each in reversed(step.items())}
        output = SimpleNamespace(num_scheduled_tokens=lengths, scheduled_spec_decode_tokens=verified or {})
        if orders is not None:
            setattr(output, ORDERS_ATTRIBUTE, orders)
        positions = torch.tensor([p for each in step.values() for p in each])
        numbers = torch.tensor([100 * (1 + "ab".index(name)) for name, each in step.items() for _ in each])
        self.input_ids.gpu[: len(positions)] = numbers + positions
        hidden = [positions[:, None].float(), numbers[:, None].float()]
        starts = np.cumsum([0, *map(len, step.values())]).astype(np.int32)
        slots = [
            BLOCKS[name][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for name, each in step.items() for p in each
        ]
        metadata = Metadata(
            query_start_loc=torch.from_numpy(starts),
            query_start_loc_cpu=torch.from_numpy(starts),
            seq_lens=torch.tensor([each.stop for each in step.values()]),
            num_actual_tokens=len(positions),
            max_query_len=max(map(len, step.values())),
            block_table_tensor=torch.tensor([BLOCKS[name] for name in step], dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
            _num_computed_tokens_cache=torch.zeros(1),
        )
        self.execute_model(output, (None, None, None, None, hidden, None, metadata, length, positions, to_sample))
        return self.sample_tokens(None)


def skip(step: int) -> DrafterOrders:
    return DrafterOrders(step, 0, skip=True)


PLAN: list[tuple[DrafterOrders, int, dict[str, range]]] = [
    (skip(0), 0, {"a": range(3), "b": range(5)}),
    (skip(1), 0, {"a": range(3, 4), "b": range(5, 6)}),
    (skip(2), 0, {"b": range(6, 7), "a": range(4, 5)}),
    (DrafterOrders(3, 0, keep={"b"}, catch_up={"a": KvLag(5, 0)}), 2, {"b": range(7, 8), "a": range(5, 6)}),
    (DrafterOrders(4, 0, keep={"b"}), 0, {"b": range(8, 9), "a": range(6, 9)}),
    (skip(5), 0, {"a": range(9, 10), "b": range(9, 10)}),
    (
        DrafterOrders(6, 0, catch_up={"a": KvLag(1, 5), "b": KvLag(10, 0)}),
        1,
        {"a": range(10, 11), "b": range(10, 11)},
    ),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_cache_that_was_caught_up_is_the_one_of_a_drafter_in_every_step(hidden: bool, asynchronous: bool) -> None:
    on_demand = Runner(Drafter(hidden), on_demand=True, asynchronous=asynchronous)
    constant = Runner(Drafter(hidden), on_demand=False)
    for orders, length, step in PLAN:
        drafts = on_demand.step(orders, length, **step)
        reference = constant.step(None, length, **step)
        if orders.skip and not asynchronous:
            assert drafts is None
        else:
            assert drafts.shape == reference.shape
    assert on_demand.speculated == [asynchronous or not orders.skip for orders, _, _ in PLAN for _ in range(2)]
    assert on_demand.speculative_config == "set"
    assert len(on_demand.drafter.calls) == len(PLAN) - 4
    assert on_demand.drafter.cache == constant.drafter.cache


def test_the_batch_is_described_as_it_is_then() -> None:
    runner = Runner(Drafter(True), on_demand=True)
    for orders, length, step in PLAN[:3]:
        runner.step(orders, length, **step)
    to_sample = torch.tensor([0, 1], dtype=torch.int32)
    runner.step(PLAN[3][0], 2, to_sample, **PLAN[3][2])
    given = runner.drafter.calls[-1]
    metadata = given["common_attn_metadata"]
    assert metadata.query_start_loc.tolist() == metadata.query_start_loc_cpu.tolist() == [0, 1, 7]
    assert (metadata.num_actual_tokens, metadata.max_query_len) == (7, 6)
    assert metadata.seq_lens.tolist() == [8, 6]
    assert metadata._num_computed_tokens_cache is None
    assert given["token_indices_to_sample"].tolist() == [0, 6]
    assert given["target_positions"].tolist() == [7, 0, 1, 2, 3, 4, 5]


def test_layers_with_a_state_are_told_of_every_step() -> None:
    runner = Runner(Drafter(True), on_demand=True, is_hybrid=True)
    for orders, length, step in PLAN[:2]:
        runner.step(orders, length, **step)
    assert runner.speculated == [True] * 4
    assert runner.drafter.calls == []


def test_what_was_not_executed_is_not_sampled() -> None:
    assert Runner(Drafter(False), on_demand=True).sample_tokens(None) is None


def test_without_orders_nothing_changes() -> None:
    runner, reference = Runner(Drafter(False), on_demand=True), Runner(Drafter(False), on_demand=False)
    for _, length, step in PLAN:
        runner.step(None, length, **step)
        reference.step(None, length, **step)
    assert runner.drafter.cache == reference.drafter.cache
    assert len(runner.drafter.calls) == len(PLAN)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_missed_is_kept_where_vllm_does_not_call_the_drafter(asynchronous: bool) -> None:
    """As it does not near the end of the model's length, whatever it is told."""
    runner = Runner(Drafter(True), on_demand=True, asynchronous=asynchronous)
    runner.drafter_fits = False
    runner.step(skip(0), a=range(3), b=range(2))
    runner.step(DrafterOrders(1, 0, keep={"a"}), a=range(3, 4), b=range(2, 4))
    runner.drafter_fits = True
    runner.step(DrafterOrders(2, 0, catch_up={"a": KvLag(4, 0)}), 1, a=range(4, 5), b=range(4, 5))
    given = runner.drafter.calls[-1]
    assert given["target_positions"].tolist() == [0, 1, 2, 3, 4, 4]
    assert given["target_token_ids"].tolist() == [100, 101, 102, 103, 104, 204]
    assert given["target_hidden_states"][:, 0].tolist() == [0, 1, 2, 3, 4, 4]


def test_what_was_not_kept_is_not_made_up() -> None:
    runner = Runner(Drafter(False), on_demand=True)
    runner.step(skip(0), a=range(3))
    runner.step(DrafterOrders(2, 0, catch_up={"a": KvLag(4, 0)}), 1, a=range(4, 5))
    assert runner.drafter.calls[-1]["target_positions"].tolist() == [4]


def test_what_cannot_be_kept_or_caught_up_costs_drafts_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(Drafter(True), on_demand=True)
    runner.step(skip(0), a=range(3))
    full = Mock(side_effect=torch.OutOfMemoryError)
    monkeypatch.setattr(DrafterOnDemand, "_caught_up", full)
    drafts = runner.step(DrafterOrders(1, 0, catch_up={"a": KvLag(3, 0)}), 2, a=range(3, 4))
    assert full.called
    assert drafts.shape == (1, 2)
    assert runner.drafter.calls[-1]["target_positions"].tolist() == [3]


def test_workers_that_share_a_step_do_not_go_on_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(Drafter(True), on_demand=True, workers=2)
    runner.step(skip(0), a=range(3))
    monkeypatch.setattr(DrafterOnDemand, "_caught_up", Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        runner.step(DrafterOrders(1, 0, catch_up={"a": KvLag(3, 0)}), 2, a=range(3, 4))


def test_no_more_is_kept_than_is_asked_for() -> None:
    runner = Runner(Drafter(False), on_demand=True)
    for step in range(9):
        runner.step(skip(step), a=range(step, step + 1))
    runner.step(DrafterOrders(9, 3, catch_up={"a": KvLag(6, 3)}), 1, a=range(9, 10))
    assert len(runner.drafter.calls[-1]["target_positions"]) == 7
    runner.step(DrafterOrders(9, 0, catch_up={"a": KvLag(9, 0)}), 1, a=range(9, 10))
    assert runner.drafter.calls[-1]["target_positions"].tolist() == [9]


def prepared(runner: Runner, orders: DrafterOrders | None = PLAN[0][0], **drafts: list[int]) -> str | None:
    return runner._prepare_inputs(a_step(orders, **drafts), [1])


def a_step(orders: DrafterOrders | None, **drafts: list[int]) -> SimpleNamespace:
    return SimpleNamespace(scheduled_spec_decode_tokens=drafts, **{ORDERS_ATTRIBUTE: orders})


def test_a_step_without_drafts_is_prepared_as_one_of_a_server_that_does_not_speculate() -> None:
    runner = Runner(Drafter(False), on_demand=True)
    assert prepared(runner) is None
    assert prepared(runner, a=[7]) == "set"
    with pytest.raises(ValueError, match="nothing"):
        runner._prepare_inputs(a_step(skip(0)), None)
    assert runner.speculative_config == "set"
    assert prepared(runner, None) == "set", "another scheduler's"
    # Where penalties need the drafts of the step before, async scheduling brings them to the sampler.
    assert prepared(Runner(Drafter(False), on_demand=True, asynchronous=True)) == "set"
    assert prepared(Runner(Drafter(False), on_demand=True, is_hybrid=True)) == "set"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_that_verifies_drafts_is_speculative_also_where_its_drafter_runs_no_pass(asynchronous: bool) -> None:
    drafter = Drafter(True)
    runner = Runner(drafter, on_demand=True, asynchronous=asynchronous)
    drafts = runner.step(skip(0), verified={"a": [7, 8, 9]}, a=range(4), b=range(1))
    assert [*map(len, drafts)] == [0, 0]
    assert runner.speculated == [True, True]
    assert drafter.calls == []
    # Of the three drafts of a one was accepted: its next token is at position 2.
    orders = DrafterOrders(1, 0, catch_up={"a": KvLag(2, 0), "b": KvLag(1, 0)}, resolved={0: {"a": 2}})
    runner.step(orders, 1, a=range(2, 3), b=range(1, 2))
    (call,) = drafter.calls
    assert call["target_positions"].tolist() == [0, 1, 2, 0, 1]
    assert call["target_token_ids"].tolist() == [100, 101, 102, 200, 201]
