"""Top-k and top-p over a vocabulary in which the cut-off is searched in two rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from turbospec_engine.sampler import CANDIDATES, SamplingBatch

VOCAB = 3 * CANDIDATES
SPREADS = {"every token about as likely": 0.1, "a few hundred tokens": 2.0, "a few tokens": 8.0}
TOP_K = (0, 1, 20, CANDIDATES, CANDIDATES + 1, 2 * CANDIDATES, VOCAB, 2 * VOCAB)
TOP_P = (1e-9, 0.3, 0.8, 0.999, 1.0)
ROUNDING = 1e-5
"""Of sums in float32."""


@pytest.mark.parametrize("spread", SPREADS)
def test_the_fewest_of_the_k_likeliest_tokens_that_have_the_mass_are_kept(spread: str) -> None:
    """All requests in one batch: which of them need the second round differs."""
    settings = [(top_k, top_p) for top_k in TOP_K for top_p in TOP_P]
    top_k, top_p = (np.array(each) for each in zip(*settings, strict=True))
    rng = np.random.default_rng(0)
    logits = torch.tensor(SPREADS[spread] * rng.standard_normal((len(settings), VOCAB)), dtype=torch.float32)
    temperature = rng.uniform(0.5, 1.5, len(settings))
    p = SamplingBatch(temperature, top_k, top_p).probabilities(logits, np.arange(len(settings))).numpy()
    for row, (k, share) in enumerate(settings):
        whole = (logits[row].double() / temperature[row]).softmax(-1).numpy()
        order = np.argsort(-whole)[: k or None]
        number = np.count_nonzero(p[row])
        assert (p[row, order[:number]] > 0.0).all(), (k, share)
        mass = whole[order].cumsum() / whole[order].sum()
        if share == 1.0:
            assert number == len(order), (k, share)
        else:
            assert number == 1 or mass[number - 2] < share + ROUNDING, (k, share)
            assert mass[number - 1] >= share - ROUNDING, (k, share)
        kept = whole[order[:number]]
        assert p[row, order[:number]] == pytest.approx(kept / kept.sum(), rel=1e-4), (k, share)


def test_rows_are_those_of_the_requests_and_tokens_as_likely_as_the_last_one_are_kept() -> None:
    batch = SamplingBatch(np.array([1.0, 2.0]), np.array([2, 0]), np.array([1.0, 0.6]))
    logits = torch.tensor([[3.0, 1.0, 1.0, 0.0], [4.0, 0.0, 4.0, -9.0], [3.0, 1.0, 1.0, 0.0]])
    p = batch.probabilities(logits, np.array([0, 1, 1])).numpy()
    assert (p > 0.0).tolist() == [[True, True, True, False], [True, False, True, False], [True, True, True, False]]
    assert p[0, 0] / p[0, 1] == pytest.approx(np.exp(2.0))
    assert p[2, 0] / p[2, 1] == pytest.approx(np.exp(1.0))


def test_drafts_are_drawn_from_sharper_distributions_in_place_of_top_p() -> None:
    batch = SamplingBatch(np.array([2.0, 0.0]), np.array([3, 0]), np.array([0.8, 1.0]))
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    q = batch.draft_probabilities(logits, np.array([0])).numpy()[0]
    assert q[3] == 0.0, "top-k holds for drafts too"
    assert q[0] / q[1] == pytest.approx(np.exp(1.0 / (2.0 * 0.8**3)), rel=1e-5)


@pytest.mark.parametrize(("top_k", "top_p"), [((1, 0), (1.0, 1.0)), ((0, 0), (0.5, 1.0))])
def test_one_request_of_a_batch_truncates_and_the_other_does_not(
    top_k: tuple[int, int], top_p: tuple[float, float]
) -> None:
    batch = SamplingBatch(np.ones(2), np.array(top_k), np.array(top_p))
    p = batch.probabilities(torch.tensor([[3.0, 1.0, 0.0]] * 2), np.arange(2)).numpy()
    assert (p > 0.0).sum(1).tolist() == [1, 3]
