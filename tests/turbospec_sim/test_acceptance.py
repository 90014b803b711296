from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import Steps, scenario, serve, state_of
from turbospec import UserError
from turbospec.policy.static import StaticPolicy
from turbospec_sim.acceptance import acceptance_tables
from turbospec_sim.randomness import key, normal, uniform
from turbospec_sim.workload.config import RequestClass


def judged(process: dict[str, Any], length: int = 5, **changes: Any) -> tuple[Steps, dict[tuple[int, int], bool]]:
    made = scenario(
        rates=[20.0],
        workload__requests=200,
        chat__output_tokens={"distribution": "constant", "tokens": 200},
        chat__prompt_tokens={"distribution": "constant", "tokens": 20},
        chat__acceptance=process,
        **changes,
    )
    steps = Steps()
    serve(state_of(made), StaticPolicy(length), steps)
    return steps, steps.acceptances()


def by_position(steps: Steps, depth: int) -> list[float]:
    accepted, tried = np.zeros(depth), np.zeros(depth)
    for _, _, outcome in steps.seen:
        for j in range(depth):
            reached = (outcome.drafted > j) & (outcome.accepted >= j)
            tried[j] += reached.sum()
            accepted[j] += (outcome.accepted[reached] > j).sum()
    return (accepted / tried).tolist()


def test_independent_and_positional_acceptance_have_their_rates() -> None:
    for process, rates in (
        ({"process": "iid", "rate": 0.6}, [0.6] * 4),
        ({"process": "by_position", "rates": [0.8, 0.6, 0.4]}, [0.8, 0.6, 0.4, 0.4]),
    ):
        steps, _ = judged(process)
        assert by_position(steps, 4) == pytest.approx(rates, abs=0.03)


def test_markov_text_has_its_shares_and_stretches() -> None:
    process = {"process": "markov", "good": [1.0], "bad": [0.0], "good_tokens": 20, "bad_tokens": 5}
    _, seen = judged(process, length=1)
    # With chances of 1 and 0 the acceptances are the states; K=1 judges every other position of good text.
    states: dict[int, list[tuple[int, bool]]] = {}
    for (request, position), good in sorted(seen.items()):
        states.setdefault(request, []).append((position, good))
    pairs = [(b[0] - a[0], a[1], b[1]) for row in states.values() for a, b in pairwise(row)]
    stay_good = np.mean([after for gap, before, after in pairs if before and gap == 2])
    stay_bad = np.mean([not after for gap, before, after in pairs if not before and gap == 1])
    leave_good, leave_bad = 1 / 20, 1 / 5
    assert stay_good == pytest.approx((1 - leave_good) ** 2 + leave_good * leave_bad, abs=0.01)
    assert stay_bad == pytest.approx(1 - leave_bad, abs=0.02)


def test_drift_and_collapse_go_by_arrival() -> None:
    drift = {"process": "drift", "before": [0.9], "after": [0.3], "begin_seconds": 2, "end_seconds": 8}
    collapse = {"process": "collapse", "before": [0.9], "after": [0.3], "at_seconds": 4, "until_seconds": 7}
    arrivals = state_of(scenario(rates=[20.0], workload__requests=200)).offered["sent"]

    def rate(seen: dict[tuple[int, int], bool], begin: float, end: float) -> float:
        return float(np.mean([ok for (request, _), ok in seen.items() if begin <= arrivals[request] < end]))

    _, seen = judged(drift, length=1)
    assert rate(seen, 0, 2) == pytest.approx(0.9, abs=0.03)
    assert rate(seen, 4.5, 5.5) == pytest.approx(0.6, abs=0.05)
    assert rate(seen, 8, 99) == pytest.approx(0.3, abs=0.03)
    _, seen = judged(collapse, length=1)
    assert [rate(seen, 0, 4), rate(seen, 4, 7), rate(seen, 7, 99)] == pytest.approx([0.9, 0.3, 0.9], abs=0.03)


def test_recorded_acceptance_is_played_back(tmp_path: Path) -> None:
    lines = [[1, 1, 0, 1], [0, 1, 1]]
    file = tmp_path / "accepted.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, seen = judged({"process": "trace", "file": str(file)})
    assert len(seen) > 1000
    for (request, position), accepted in seen.items():
        line = lines[request % 2]
        assert accepted == bool(line[position % len(line)])


@pytest.mark.parametrize(("text", "words"), [("[1, 2]", ":1: not a list"), ("no", ":1: not JSON"), ("", "no line")])
def test_a_broken_recording_is_named(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "accepted.jsonl"
    file.write_text(text)
    kind = RequestClass.model_validate({"name": "a", "acceptance": {"process": "trace", "file": file}})
    with pytest.raises(UserError, match=words):
        acceptance_tables([kind])


def test_counters_give_uniform_and_normal_numbers() -> None:
    stream = key(3, 5)
    numbers = np.array([uniform(stream, counter) for counter in range(20_000)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert np.histogram(numbers, 10, (0, 1))[0] == pytest.approx(2000, abs=180)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    other = np.array([uniform(key(3, 6), counter) for counter in range(20_000)])
    assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.03
    bell = np.array([normal(stream, counter) for counter in range(20_000)])
    assert (bell.mean(), bell.std()) == (pytest.approx(0.0, abs=0.03), pytest.approx(1.0, abs=0.03))
    assert not math.isnan(bell.sum())
