"""What the training of heads shares: where drafts begin, what a draft sees, and the loss of its positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from training import heads


def test_drafts_begin_at_different_positions_up_to_the_last() -> None:
    starts = [heads.starts_at(step, 56, 502, seed=7) for step in range(50)]
    assert all(len(set(each.tolist())) == 56 for each in starts)
    assert min(int(each.min()) for each in starts) == 0
    assert max(int(each.max()) for each in starts) == 502
    assert torch.equal(heads.starts_at(3, 56, 502, seed=7), starts[3])
    assert not torch.equal(starts[3], starts[4])
    of_windows = np.random.default_rng((7, 3)).choice(503, 56, replace=False)
    assert starts[3].tolist() != sorted(of_windows.tolist())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_attention_of_drafts(kv_heads: int, causal: bool) -> None:
    """Each draft as one ordinary attention over the text up to its start and itself."""
    torch.manual_seed(0)
    length, size, starts = 12, 3, torch.tensor([0, 5, 11])
    query = torch.randn(2, 4, len(starts) * size, 8)
    key, value = torch.randn(2, 2, kv_heads, len(starts) * size, 8)
    text_key, text_value = torch.randn(2, 2, kv_heads, length, 8)
    own = torch.full((size, size), -torch.inf).triu(1) if causal else torch.zeros(size, size)
    found = heads.attend_drafts(query, key, value, text_key, text_value, starts, own)
    for draft, start in enumerate(starts.tolist()):
        span = slice(draft * size, (draft + 1) * size)
        seen_key, seen_value = (
            torch.cat([text[:, :, : start + 1], part[:, :, span]], dim=2)
            for text, part in ((text_key, key), (text_value, value))
        )
        mask = torch.cat([torch.zeros(size, start + 1), own], dim=1)
        expected = F.scaled_dot_product_attention(
            query[:, :, span], seen_key, seen_value, attn_mask=mask, enable_gqa=True
        )
        torch.testing.assert_close(found[:, :, span], expected)


def test_a_position_counts_as_accepted_with_all_before_it() -> None:
    """A draft's position d is for the target's logits at its start + d."""
    logits = F.one_hot(torch.arange(8) % 5, 5)[None].float() * 20
    guessed = torch.stack([logits[:, 1:4], logits[:, 3:6]], dim=1)
    losses, accepted = heads.draft_losses(guessed, logits, torch.tensor([1, 3]))
    torch.testing.assert_close(losses, torch.zeros(3), atol=1e-5, rtol=0)
    assert accepted == [1.0, 1.0, 1.0]
    guessed[0, 1, 1] = guessed[0, 1, 1].roll(1)
    losses, accepted = heads.draft_losses(guessed, logits, torch.tensor([1, 3]))
    torch.testing.assert_close(losses, torch.tensor([0.0, 10.0, 0.0]), atol=1e-5, rtol=0)
    assert accepted == [1.0, 0.5, 0.5]
