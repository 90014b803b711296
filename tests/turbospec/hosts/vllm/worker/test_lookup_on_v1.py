"""Drafts of a look-up on a stand-in for model runner V1."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.lookup_drafts import LOOKUP_DRAFTS_ATTRIBUTE, LookupDraft  # noqa: E402
from turbospec.hosts.vllm.worker.lookup_on_v1 import install  # noqa: E402

WIDTH, VOCABULARY = 4, 10


@dataclass
class Metadata:
    """vLLM's `SpecDecodeMetadata`."""

    draft_token_ids: Any
    num_draft_tokens: list[int]


class Runner:
    """vLLM's, after a step of three requests whose drafter made two draft tokens for each."""

    def __init__(
        self, *, asynchronous: bool = True, drafts: Any = ((1, 2), (3, 4), (5, 6)), host: bool = False
    ) -> None:
        self.use_async_scheduling = asynchronous
        self.num_spec_tokens, self.device = WIDTH, torch.device("cpu")
        self.input_batch = SimpleNamespace(req_ids=["a", "b", "c"], prev_req_id_to_index={"a": 0, "b": 1, "c": 2})
        self._draft_token_ids: Any = None if drafts is None else torch.tensor(drafts, dtype=torch.int64).reshape(3, -1)
        self._draft_token_req_ids = ["a", "b", "c"] if host else None
        self.prev_num_spec_tokens = 2
        self.valid_sampled_token_count_gpu = torch.tensor([1, 3, 1], dtype=torch.int32)
        self._draft_probs: Any = None
        self.copied = 0

    def execute_model(self, scheduler_output: Any, more: str = "") -> tuple[Any, str]:
        return scheduler_output, more

    def _copy_draft_token_ids_to_cpu(self, scheduler_output: Any) -> None:
        self.copied += 1

    def _get_spec_decode_draft_probs(self, metadata: Metadata) -> Any:
        if self._draft_probs is None:
            return None
        rows = [self._draft_probs[row, :number] for row, number in enumerate(metadata.num_draft_tokens) if number]
        return torch.cat(rows) if rows else None


def step(**drafts: LookupDraft) -> SimpleNamespace:
    return SimpleNamespace(**({LOOKUP_DRAFTS_ATTRIBUTE: drafts} if drafts else {}))


@pytest.mark.parametrize("host", [False, True])
def test_under_async_scheduling_they_are_put_beside_the_drafters(host: bool) -> None:
    runner = Runner(host=host)
    install(runner)
    output = step(b=LookupDraft(20, [7, 8, 9, 1, 2, 3]), gone=LookupDraft(20, [1]))
    assert runner.execute_model(output, more="more") == (output, "more")
    assert runner._draft_token_ids.tolist() == [[1, 2, 0, 0], [1, 2, 3, 3], [5, 6, 0, 0]]
    assert runner.prev_num_spec_tokens == WIDTH
    assert runner.copied == host, "where penalties read them"


@pytest.mark.parametrize("drafts", [None, ((), (), ())])
def test_they_need_no_drafts_of_the_drafter(drafts: Any) -> None:
    runner = Runner(drafts=drafts)
    install(runner)
    runner.execute_model(step(a=LookupDraft(20, [7, 8, 9])))
    assert runner._draft_token_ids.tolist() == [[8, 9, 9, 9], [0] * WIDTH, [0] * WIDTH]


@pytest.mark.parametrize(("asynchronous", "drafts"), [(True, {}), (False, {"a": LookupDraft(20, [7])})])
def test_other_steps_are_vllms_own(asynchronous: bool, drafts: dict[str, LookupDraft]) -> None:
    """Without async scheduling the step itself names its drafts."""
    runner = Runner(asynchronous=asynchronous)
    install(runner)
    runner.execute_model(step(**drafts))
    assert runner._draft_token_ids.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert runner.prev_num_spec_tokens == 2


def test_for_rejection_sampling_they_are_point_masses() -> None:
    runner = Runner(asynchronous=False)
    install(runner)
    runner._draft_probs = own = torch.rand(3, 2, VOCABULARY)
    metadata = Metadata(torch.tensor([1, 7, 8, 9, 5, 6], dtype=torch.int32), [1, 3, 2])
    runner.execute_model(step(b=LookupDraft(20, [7, 8, 9])))
    got = runner._get_spec_decode_draft_probs(metadata)
    assert torch.equal(got[:1], own[0, :1])
    assert torch.equal(got[4:], own[2])
    assert got[1:4].argmax(dim=1).tolist() == [7, 8, 9]
    assert got[1:4].sum(dim=1).tolist() == [1.0, 1.0, 1.0]
    runner.execute_model(step())
    assert torch.equal(
        runner._get_spec_decode_draft_probs(Metadata(metadata.draft_token_ids, [1, 0, 2])), own_rows(own)
    )


def own_rows(own: Any) -> Any:
    return torch.cat([own[0, :1], own[2]])


def test_where_all_drafts_are_point_masses_there_are_no_probabilities() -> None:
    runner = Runner(asynchronous=False)
    install(runner)
    runner.execute_model(step(b=LookupDraft(20, [7])))
    metadata = Metadata(torch.tensor([7]), [0, 1, 0])
    assert runner._get_spec_decode_draft_probs(metadata) is None
    runner._draft_probs = torch.rand(3, 2, VOCABULARY)
    assert runner._get_spec_decode_draft_probs(metadata) is None
