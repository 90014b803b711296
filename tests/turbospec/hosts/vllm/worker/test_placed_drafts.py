from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.lookup_drafts import LookupDraft  # noqa: E402
from turbospec.hosts.vllm.worker.placed_drafts import placed  # noqa: E402


def test_a_draft_begins_after_the_tokens_that_were_emitted_since() -> None:
    drafts = [LookupDraft(7, [1, 2, 3, 4, 5]), LookupDraft(9, [6, 7, 8])]
    assert placed(drafts, torch.tensor([0, 0]), 3).tolist() == [[1, 2, 3], [6, 7, 8]]
    assert placed(drafts, torch.tensor([2, 1]), 3).tolist() == [[3, 4, 5], [7, 8, 8]]


def test_past_the_end_there_is_always_a_token() -> None:
    """No step verifies it, but an embedding of it may be looked up."""
    draft = LookupDraft(7, [1, 2])
    assert placed([draft], torch.tensor([9]), 2).tolist() == [[2, 2]]
    assert placed([draft], torch.tensor([-3]), 2).tolist() == [[1, 1]], "nor before the beginning"
