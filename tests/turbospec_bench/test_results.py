from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turbospec import UserError
from turbospec_bench import results as results_module
from turbospec_bench.configuration import Configuration, by_configuration
from turbospec_bench.contender import Run
from turbospec_bench.results import RATIOS, Results
from turbospec_bench.variant import Variant

CONFIGURATION = Configuration("code", "good", 8)
VARIANTS = (Variant("off"), Variant("mine/fancy.yaml", "after_draft"))


def run(throughput: float, extra: float = 1.0) -> Run:
    return Run(dict.fromkeys(RATIOS, 10.0) | {"output_throughput": throughput, "acceptance_rate": extra}, {})


@pytest.fixture
def results(tmp_path: Path) -> Results:
    made = Results(tmp_path / "new" / "results.json", {"seed": 3})
    made.put(CONFIGURATION, VARIANTS, [[run(100), run(150)], [run(200), run(260)], [run(110, math.nan), run(143)]])
    return made


def test_rows_hold_medians_spread_ratios_and_rounds(results: Results) -> None:
    off, fancy = results.rows

    assert (fancy["policy"], fancy["emit"], fancy["rounds"]) == ("fancy", "after_draft", 3)
    assert (fancy["concurrency"], fancy["request_rate"]) == (8, "inf")
    assert fancy["output_throughput"] == 150
    assert fancy["ratio_to_off"]["output_throughput"]["value"] == pytest.approx(1.3)
    assert fancy["round_figures"]["output_throughput"] == [150, 260, 143]
    assert fancy["spread"]["output_throughput"] == [146.5, 205.0]
    assert off["ratio_to_off"]["output_throughput"] == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_a_saved_file_is_strict_json_and_loads_again(results: Results) -> None:
    results.save()

    document = json.loads(results.path.read_text(), parse_constant=lambda name: pytest.fail(name))
    loaded = Results.load(results.path)

    assert set(document) == {"meta", "rows"}
    assert loaded.rows[0]["round_figures"]["acceptance_rate"] == [1.0, 1.0, None]
    assert loaded.rows[0]["acceptance_rate"] == 1.0, "of the rounds that have one"
    assert loaded.meta == {"seed": 3}
    assert list(by_configuration(loaded.rows)) == [CONFIGURATION]
    assert list(results.path.parent.iterdir()) == [results.path]


def test_a_configuration_is_finished_with_all_policies_and_rounds(results: Results) -> None:
    assert results.has(CONFIGURATION, VARIANTS, rounds=3)
    assert not results.has(CONFIGURATION, VARIANTS, rounds=4)
    assert not results.has(CONFIGURATION, (*VARIANTS, Variant("adaptive")), rounds=3)
    assert not results.has(Configuration("code", "good", 1), VARIANTS, rounds=1)


def test_putting_a_configuration_again_replaces_it(results: Results) -> None:
    results.put(CONFIGURATION, VARIANTS, [[run(1), run(2)]])

    assert [row["rounds"] for row in results.rows] == [1, 1]


def test_rounds_that_are_read_again_make_the_same_rows(results: Results) -> None:
    results.save()
    loaded = Results.load(results.path)
    before = [dict(row) for row in loaded.rows]

    loaded.put(CONFIGURATION, VARIANTS, loaded.rounds_of(CONFIGURATION, VARIANTS))
    loaded.save()

    assert Results.load(results.path).rows == before
    assert loaded.missing_rounds(CONFIGURATION, VARIANTS, 3) == ()
    assert [*loaded.missing_rounds(CONFIGURATION, VARIANTS, 5)] == [4, 5]
    assert [*loaded.missing_rounds(Configuration("code", "good", 1), VARIANTS, 2)] == [1, 2]


def test_other_policies_are_not_added_to_a_configuration(results: Results) -> None:
    with pytest.raises(UserError, match=r"code/good/c8 was measured with another selection of policies \(adaptive\)"):
        results.missing_rounds(CONFIGURATION, (*VARIANTS, Variant("adaptive")), 3)
    assert results.missing_rounds(CONFIGURATION, VARIANTS[:1], 3) == ()


def test_every_round_is_saved_when_it_is_played(results: Results) -> None:
    played = results.rounds_of(CONFIGURATION, VARIANTS)
    saved: list[int] = []

    def rounds() -> Iterator[list[Run]]:
        for _ in range(2):
            yield [run(90), run(95)]
            saved.append(Results.load(results.path).rows[0]["rounds"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results.collect(CONFIGURATION, VARIANTS, rounds())

    assert saved == [len(played) + 1, len(played) + 2]
    assert Results.load(results.path).rows[1]["round_figures"]["output_throughput"] == [150, 260, 143, 95, 95]


def test_an_interruption_while_rows_are_made_keeps_the_earlier_rounds(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [*results.rows]
    made: list[Any] = []

    def interrupted(*arguments: Any) -> Any:
        made.append(arguments)
        if len(made) == len(VARIANTS):
            raise KeyboardInterrupt
        return {}

    monkeypatch.setattr(results_module, "_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.collect(CONFIGURATION, VARIANTS, [[run(90), run(95)]])

    assert results.rows == before


@pytest.mark.parametrize("content", [None, "[]", "{", '{"meta": {}}'])
def test_a_bad_file_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(UserError, match=r"results\.json: "):
        Results.load(path)
