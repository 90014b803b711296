from __future__ import annotations

import math
from typing import Any

import pytest

from turbospec_sim.fixed_plans import chosen
from turbospec_sim.replications import Replications, replications


def row(seed: int = 0, **fields: Any) -> dict[str, Any]:
    defaults = {"scenario": "s", "policy": "off", "request_rate": 1.0, "concurrency": None}
    return defaults | {"seed": seed, "slo_met": None, "figure": 1.0} | chosen(None) | fields


def of(*rows: dict[str, Any]) -> Replications:
    return Replications(rows[0]["policy"], rows[0]["request_rate"], rows)


def test_rows_are_put_together_over_their_seeds_only() -> None:
    rows = [row(seed, policy=policy, request_rate=rate) for rate in (2.0, 1.0) for seed in (0, 1) for policy in "ba"]
    rows.append(row(scenario="t"))
    groups = replications(rows)
    assert list(groups) == ["s", "t"]
    assert [(one.policy, one.rate) for one in groups["s"]] == [("b", 2.0), ("a", 2.0), ("b", 1.0), ("a", 1.0)]
    assert [[one["seed"] for one in group.rows] for group in groups["s"]] == [[0, 1]] * 4


def test_an_interval_is_students() -> None:
    three = of(row(figure=1.0), row(figure=2.0), row(figure=3.0))
    assert three.mean("figure") == pytest.approx(2.0)
    assert three.half_width("figure") == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    assert three.words("figure", ".1f") == "2.0 ± 2.5"


def test_a_figure_that_is_missing_is_left_out() -> None:
    one = of(row(figure=math.nan), row(figure=None), row(figure=5.0))
    assert (one.mean("figure"), one.words("figure", ".0f")) == (5.0, "5")
    assert math.isnan(one.half_width("figure"))
    assert of(row(figure=None)).words("figure", ".0f") == "–"


@pytest.mark.parametrize(
    ("met", "words"),
    [
        ([None], "–"),
        ([True], "met"),
        ([False], "missed"),
        ([True, False], "met in 1 of 2"),
        ([True, True], "met in 2 of 2"),
    ],
)
def test_verdicts_over_seeds(met: list[bool | None], words: str) -> None:
    assert of(*(row(slo_met=one) for one in met)).verdict == words


def test_loads_and_labels_in_words() -> None:
    assert (of(row()).load, of(row()).load_name) == ("1", "1 requests/s")
    assert of(row(request_rate="inf", concurrency=6)).load_name == "6 at once"
    assert of(row(request_rate="inf")).load == "all at once"
    assert of(row(draft_length=3), row(draft_length=1), row(draft_length=3)).label == "off (K=1; K=3)"
