from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from turbospec.hosts.vllm.worker import full_drafts

LONGEST = 4


def runner_with(drafter: Any, method: str, *, parallel_drafting: bool = False) -> SimpleNamespace:
    """A model runner that calls its drafter as vLLM's does."""
    speculation = SimpleNamespace(method=method, parallel_drafting=parallel_drafting)
    runner = SimpleNamespace(drafter=drafter, speculative_config=speculation)

    def propose_draft_token_ids(scheduler_output: Any, sampled_token_ids: Any, *_: Any) -> Any:
        return runner.drafter.propose(num_speculative_tokens=scheduler_output.num_spec_tokens_to_schedule)

    runner.propose_draft_token_ids = propose_draft_token_ids
    full_drafts.install(runner)
    return runner


class BlockDrafter:
    """Drafts 10, 11, 12, 13 for each of two requests, and refuses any other length."""

    num_speculative_tokens = LONGEST

    def __init__(self) -> None:
        self.calls = 0
        self._last_draft_probs: Any = None

    def propose(self, num_speculative_tokens: int) -> Any:
        assert num_speculative_tokens == self.num_speculative_tokens
        self.calls += 1
        self._last_draft_probs = torch.rand(2, LONGEST, 7)
        return torch.arange(10, 10 + LONGEST).repeat(2, 1)


@pytest.mark.parametrize(("method", "parallel_drafting"), [("medusa", False), ("eagle3", True), ("dflash", True)])
def test_a_block_is_cut_to_the_steps_length(method: str, parallel_drafting: bool) -> None:
    drafter = BlockDrafter()
    runner = runner_with(drafter, method, parallel_drafting=parallel_drafting)
    for length in (1, 3, LONGEST):
        drafts = runner.propose_draft_token_ids(SimpleNamespace(num_spec_tokens_to_schedule=length), [[5], [6]])
        assert drafts.tolist() == [list(range(10, 10 + length))] * 2
        assert drafter._last_draft_probs.shape == (2, length, 7)
    assert drafter.calls == 3


def test_a_drafter_without_state_is_not_called_for_no_drafts() -> None:
    drafter = BlockDrafter()
    runner = runner_with(drafter, "medusa")
    assert runner.propose_draft_token_ids(SimpleNamespace(num_spec_tokens_to_schedule=0), [[5], [6]]) == [[], []]
    assert drafter.calls == 0


def test_a_sequential_drafter_is_left_as_it_is() -> None:
    drafter = BlockDrafter()
    runner_with(drafter, "eagle3")
    assert "propose" not in vars(drafter)


class SuffixDrafter:
    """As vLLM's: takes up the sampled tokens, and drafts what its cache finds."""

    num_speculative_tokens = LONGEST

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.suffix_cache = SimpleNamespace(speculate=lambda most: SimpleNamespace(token_ids=[7, 8, 9][:most]))

    def propose(self, num_speculative_tokens: int, sampled: list[int]) -> list[list[int]]:
        assert num_speculative_tokens == self.num_speculative_tokens
        self.seen += sampled
        return [self.suffix_cache.speculate(self.num_speculative_tokens).token_ids]


def test_suffix_decoding_takes_up_the_tokens_of_every_step() -> None:
    drafter = SuffixDrafter()
    runner_with(drafter, "suffix")
    drafts = [drafter.propose(length, [length]) for length in (2, 0, 4, 0, 1)]
    assert drafts == [
        [[7, 8]],
        [[]],
        [[7, 8, 9]],
        [[]],
        [[7]],
    ]
    assert drafter.seen == [2, 0, 4, 0, 1]
    assert drafter.num_speculative_tokens == LONGEST


class NgramDrafter:
    """As vLLM's on the device: writes the sampled tokens into its history, and looks up drafts with a kernel."""

    k = LONGEST

    def __init__(self) -> None:
        self.history: list[int] = []
        self.look_ups = 0

    def kernel(self, num_tokens: Any) -> Any:
        self.look_ups += 1
        return torch.arange(LONGEST).repeat(len(num_tokens), 1), torch.tensor([LONGEST, 1])

    def propose(self, num_speculative_tokens: int, sampled: int) -> Any:
        assert num_speculative_tokens == self.k
        self.history.append(sampled)
        return self.kernel(torch.zeros(2))


def test_look_up_on_the_device_takes_up_the_tokens_of_every_step() -> None:
    drafter = NgramDrafter()
    runner_with(drafter, "ngram_gpu")
    drafts, valid = drafter.propose(2, 5)
    assert (drafts.tolist(), valid.tolist()) == ([[0, 1]] * 2, [2, 1])
    drafts, valid = drafter.propose(0, 6)
    assert (drafts.shape, valid.tolist()) == ((2, 0), [0, 0])
    assert (drafter.history, drafter.look_ups) == ([5, 6], 1)
