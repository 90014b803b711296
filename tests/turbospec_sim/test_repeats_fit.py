from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest

from turbospec import UserError
from turbospec_sim.repeats_fit import Observed, fitted, observe
from turbospec_sim.workload.lengths import LogNormalLength
from turbospec_sim.workload.repeats import GeometricLength

Rng = np.random.Generator
Draw = Callable[[Rng], int]
Texts = list[tuple[list[str], list[str]]]


def geometric(mean: float, low: int = 1) -> Draw:
    return lambda rng: low - 1 + int(rng.geometric(1.0 / (mean - low + 1)))


def lognormal(mean: float, sigma: float, low: int = 1) -> Draw:
    location = math.log(mean) - sigma**2 / 2
    return lambda rng: max(round(math.exp(location + sigma * rng.standard_normal())), low)


def copied(rng: Rng, prompt: list[str], length: int) -> list[str]:
    begin = int(rng.integers(0, len(prompt) - length))
    return prompt[begin : begin + length]


def gap_of(length: int, fresh: Iterator[str]) -> list[str]:
    return [next(fresh) for _ in range(length)]


def synthetic(repeat: Draw, gap: Draw, *, outputs: int = 150, tokens: int = 400) -> Texts:
    """Outputs that copy from their prompts, with tokens between that come only once."""
    rng, texts = np.random.default_rng(5), Texts()
    for number in range(outputs):
        prompt, fresh = [f"p{number}.{place}" for place in range(2000)], (f"f{number}.{place}" for place in count())
        output: list[str] = []
        while len(output) < tokens:
            output += gap_of(gap(rng), fresh) + copied(rng, prompt, repeat(rng))
        texts.append((prompt, output[:tokens]))
    return texts


def test_geometric_lengths_are_recovered() -> None:
    observed = observe(synthetic(geometric(40, 8), geometric(12)), 3, 8)
    found = fitted(observed, 3, 8)
    assert isinstance(found.repeat_tokens, GeometricLength)
    assert isinstance(found.gap_tokens, GeometricLength)
    assert (found.repeat_tokens.mean, found.repeat_tokens.low) == (pytest.approx(40, rel=0.1), 8)
    assert found.gap_tokens.mean == pytest.approx(12, rel=0.1)
    assert (found.false_match, found.false_acceptance, found.min_match) == (0.0, 0.0, 3)
    assert observed.repeated_share == pytest.approx(40 / 52, abs=0.03)
    assert observed.tokens == pytest.approx(150 * 400, rel=0.02)


def test_lognormal_lengths_are_recovered_though_the_outputs_end_cuts_long_ones() -> None:
    found = fitted(observe(synthetic(lognormal(60, 0.8, 8), lognormal(30, 1.0), outputs=300), 3, 8), 3, 8)
    assert isinstance(found.repeat_tokens, LogNormalLength)
    assert isinstance(found.gap_tokens, LogNormalLength)
    assert found.repeat_tokens.mean == pytest.approx(60, rel=0.12)
    assert found.repeat_tokens.sigma == pytest.approx(0.8, abs=0.08)
    assert found.gap_tokens.mean == pytest.approx(30, rel=0.12)
    assert found.gap_tokens.sigma == pytest.approx(1.0, abs=0.1)


def test_short_coincidences_are_false_matches() -> None:
    rng, texts, matches = np.random.default_rng(1), Texts(), 0
    for number in range(200):
        prompt, fresh = [f"p{place}" for place in range(2000)], (f"f{number}.{place}" for place in count())
        output = copied(rng, prompt, 30)
        for _ in range(20):
            # A coincidence of 3 tokens goes on with a probability of 0.3 for each token more.
            length = 2 + int(rng.geometric(0.7))
            if length < 8:
                matches += length - 2
                output += gap_of(6, fresh) + copied(rng, prompt, length)
        texts.append((prompt, output + gap_of(16, fresh)))
    observed = observe(texts, 3, 8)
    found = fitted(observed, 3, 8)
    assert len(observed.repeats.lengths) == 200
    assert observed.found == matches
    assert found.false_match == pytest.approx(matches / observed.tried, abs=1e-4)
    assert found.false_acceptance == pytest.approx(0.3, abs=0.03)


def test_the_longest_match_and_then_the_latest_is_taken() -> None:
    prompt, end = [*"xabc1.yabc2.zabc3."], [f"q{place}" for place in range(8)]
    for output, found, accepted in (("xabc1", 3, 3), ("abc3", 2, 1), ("abc1", 2, 0)):
        observed = observe([(prompt, [*output, *end])], 3, 8)
        assert (observed.found, observed.accepted) == (found, accepted)


def test_the_token_after_a_repeat_belongs_to_the_gap() -> None:
    prompt = [f"p{place}" for place in range(100)]
    observed = observe([([*prompt], [*prompt[10:20], *prompt[50:70]])], 3, 8)
    assert observed.repeats.lengths == [10, 19]
    assert observed.repeats.ended == [True, False]
    assert observed.gaps.lengths == [1]


def test_text_that_does_not_repeat_has_no_fit() -> None:
    with pytest.raises(UserError, match="no repeat of 8 tokens or more in 1 outputs"):
        fitted(observe([([], [str(place) for place in range(50)])], 3, 8), 3, 8)
    with pytest.raises(UserError, match="in 0 outputs"):
        fitted(Observed(), 3, 8)
