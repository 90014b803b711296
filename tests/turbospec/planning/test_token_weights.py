"""Weights of tokens by the time that they save their request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospec.interface import Phase
from turbospec.planning.offers import Offers, list_offers
from turbospec.planning.token_weights import accepted_tokens, token_weights, update_tokens_per_step, weigh

ROWS = np.array([4, 0, 2])
DECODE = np.full(3, Phase.DECODE.value)


def test_a_token_is_worth_the_time_that_it_saves():
    weights = token_weights(ROWS, DECODE, np.array([4.0, 0.0, 2.0, 0.0, 1.0]))
    assert weights == pytest.approx([12 / 7, 3 / 7, 6 / 7])


@given(st.lists(st.floats(1.0, 16.0), min_size=1, max_size=20))
def test_the_mean_weight_is_1(tokens_per_step):
    n = len(tokens_per_step)
    weights = token_weights(np.arange(n), np.full(n, Phase.DECODE.value), np.array(tokens_per_step))
    assert weights.mean() == pytest.approx(1.0)
    if len(set(tokens_per_step)) == 1:
        assert weights == pytest.approx(np.ones(n))


def test_requests_of_unknown_pace_and_in_prefill_have_weight_1():
    phase = np.array([Phase.PREFILL.value, Phase.DECODE.value, Phase.DECODE.value])
    weights = token_weights(ROWS, phase, np.array([0.0, 0.0, 2.0, 0.0, 8.0]))
    assert weights == pytest.approx(np.ones(3))


def test_weighing_does_not_change_the_expected_tokens():
    offers = Offers(*list_offers(np.array([2, 1, 2]), np.array([0, 3, 0]), np.array([0, 1, 0])))
    survival = np.array([[0.9, 0.8, 0.0], [0.5, 0.0, 0.0], [0.7, 0.6, 0.0], [0.6, 0.5, 0.4]])
    weights = np.array([0.5, 1.5, 1.0])
    weighted = survival.copy()
    weigh(weighted, offers, weights)
    assert weighted[3] == pytest.approx(1.5 * survival[3])
    accepted = accepted_tokens(weighted, offers, weights, np.array([2, 0, 1, 3]))
    assert accepted == pytest.approx([1.7, 1.5, 0.7])


def test_the_running_mean_starts_with_the_first_plan():
    tokens_per_step = np.array([0.0, 9.0, 2.0, 9.0, 3.0])
    phase = np.array([Phase.DECODE.value, Phase.DECODE.value, Phase.PREFILL.value])
    update_tokens_per_step(tokens_per_step, ROWS, phase, np.array([1.0, 0.5, 4.0]), 0.2)
    assert tokens_per_step == pytest.approx([1.5, 9.0, 2.0, 9.0, 2.8])
