"""Which kept rows a request gets when it catches up, against the same found one by one; without vLLM."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from turbospec.hosts.vllm.shared.drafter_orders import KvLag  # noqa: E402
from turbospec.hosts.vllm.worker.kept_inputs import KeptInputs, KeptStep  # noqa: E402

NAMES = "abcdefgh"


def kept_steps(rng: np.random.Generator, number: int) -> list[KeptStep]:
    """Steps of changing requests, some with drafts of which the last were rejected. Tokens are numbered."""
    steps: list[KeptStep] = []
    for step in range(10, 10 + number):
        names = rng.permutation(list(NAMES))[: rng.integers(1, len(NAMES))].tolist()
        if steps and rng.random() < 0.5:
            names = list(steps[-1].lengths)
        lengths = {name: int(rng.integers(1, 4)) for name in names}
        valid = {name: int(rng.integers(1, length + 1)) for name, length in lengths.items() if rng.random() < 0.3}
        valid |= {"of a request that has ended": 1}
        tokens = 100 * step + torch.arange(sum(lengths.values()))
        steps.append(KeptStep(step, tokens, None, lengths, valid))
    return steps


def one_by_one(steps: list[KeptStep], name: str, since: int) -> list[int]:
    found: list[int] = []
    for kept in steps:
        first = 100 * kept.step
        for other, length in kept.lengths.items():
            if other == name and kept.step >= since:
                found += range(first, first + kept.valid.get(name, length))
            first += length
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_request_gets_its_kept_tokens_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = kept_steps(rng, int(rng.integers(1, 12)))
    inputs = KeptInputs(with_hidden=False, alone=True)
    inputs._steps.extend(steps)
    names = rng.permutation(list(NAMES))[:5].tolist()
    since = {name: int(rng.integers(8, 22)) for name in names[:4]}
    expected = {name: one_by_one(steps, name, first) for name, first in since.items()}
    lags = {name: KvLag(len(expected[name]), since[name]) for name in since}
    incomplete = names[0]
    lags[incomplete] = KvLag(len(expected[incomplete]) + 1, since[incomplete])
    expected[incomplete] = []

    made = inputs.first_pass(lags, names, np.arange(6), torch.arange(5), None)

    rows = np.split(made.tokens.numpy(), made.starts[1:-1])
    assert [row.tolist() for row in rows] == [[*expected.get(name, []), number] for number, name in enumerate(names)]
    assert made.added.tolist() == [len(expected.get(name, [])) for name in names]
