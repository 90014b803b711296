"""A results file is read as a whole or refused in one line, whatever is wrong in it."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turbospec import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.contender import Run
from turbospec_bench.results import RATIOS, Results
from turbospec_bench.variant import Variant

CONFIGURATION = Configuration("code", "good", 8)
VARIANTS = (Variant("off"), Variant("adaptive"))
TIMELINE = {
    "timeline": {"seconds": [0.0], "decoding_requests": [2.0], "draft_length": [3.0], "acceptance": [None]},
    "step_times": {"predicted_ms": [1.0], "measured_ms": [1.1], "prefill_tokens": [0]},
}


def run(value: float, **fields: Any) -> Run:
    return Run(dict.fromkeys(RATIOS, value) | {"acceptance_rate": math.nan, "duration": 3.0}, TIMELINE, **fields)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    made = Results(tmp_path / "made.json", {"seed": 3, "threads": 2, "vllm_tables": {"good": [[1, 2, 3]]}})
    made.put(CONFIGURATION, VARIANTS, [[run(1.0), run(2.0)], [run(1.5), run(3.0, other_cores=0.5, disturbed=True)]])
    made.save()
    return json.loads(made.path.read_text())


def at(*path: str | int) -> Callable[[dict[str, Any], Any], None]:
    def put(document: dict[str, Any], value: Any) -> None:
        *way, last = path
        for name in way:
            document = document[name]
        if value is None:
            del document[last]
        else:
            document[last] = value

    return put


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (at("meta"), 3),
        (at("meta", "threads"), "two"),
        (at("meta", "vllm_tables"), {"good": [[1, 2]]}),
        (at("rows"), {}),
        (at("rows", 0), []),
        (at("rows", 0, "workload"), None),
        (at("rows", 0, "workload"), "../../elsewhere"),
        (at("rows", 0, "policy"), ["off"]),
        (at("rows", 0, "emit"), "sometimes"),
        (at("rows", 0, "emit"), None),
        (at("rows", 0, "concurrency"), 2.5),
        (at("rows", 0, "concurrency"), True),
        (at("rows", 0, "request_rate"), 3.0),
        (at("rows", 0, "request_rate"), "fast"),
        (at("rows", 0, "rounds"), 0),
        (at("rows", 0, "rounds"), 3),
        (at("rows", 0, "rounds"), "2"),
        (at("rows", 0, "output_throughput"), None),
        (at("rows", 0, "mean_tpot_ms"), "9"),
        (at("rows", 0, "p99_ttft_ms"), -1.0),
        (at("rows", 0, "controller_time_share"), []),
        (at("rows", 0, "ratio_to_off"), {}),
        (at("rows", 0, "ratio_to_off", "mean_ttft_ms"), {"value": 1.0}),
        (at("rows", 0, "ratio_to_off", "mean_ttft_ms", "more"), 1.0),
        (at("rows", 0, "round_figures"), None),
        (at("rows", 0, "round_figures", "output_throughput"), [1.0, 0.0]),
        (at("rows", 0, "round_figures", "mean_tpot_ms"), [1.0]),
        (at("rows", 0, "round_figures", "anything"), [1.0, "x"]),
        (at("rows", 0, "other_cores"), [0.5]),
        (at("rows", 0, "disturbed_rounds"), [3]),
        (at("rows", 1, "disturbed_rounds"), []),
        (at("rows", 0, "timeline"), {"seconds": [0.0]}),
        (at("rows", 0, "timeline", "seconds"), [0.0, 1.0]),
        (at("rows", 0, "step_times", "measured_ms"), [0.0]),
        (at("rows", 0, "acceptance_by_position"), ["high"]),
    ],
)
def test_a_field_of_another_type_is_named(
    document: dict[str, Any], tmp_path: Path, place: Callable[[dict[str, Any], Any], None], value: Any
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    assert len(Results.load(path).rows) == 2
    place(document, value)
    path.write_text(json.dumps(document))

    with pytest.raises(UserError, match=r"wrong\.json: not a file that `turbospec bench --json` wrote \(") as refusal:
        Results.load(path)

    assert "\n" not in str(refusal.value)


def test_two_rows_of_one_run_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    document["rows"].append(copy.deepcopy(document["rows"][0]))
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match="has two rows"):
        Results.load(path)


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"meta": {}, "rows": [{"rounds": 1e999}]}', "[" * 10**5, "\xff"])
def test_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"wrong\.json: not a "):
        Results.load(path)


def test_old_files_without_a_watch_over_other_processes_are_read(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    for row in document["rows"]:
        for name in ("other_cores", "disturbed_rounds", "timeline", "step_times"):
            del row[name]
    path.write_text(json.dumps(document))
    loaded = Results.load(path)
    assert [[run.disturbed for run in runs] for runs in loaded.rounds_of(CONFIGURATION, VARIANTS)] == [[False] * 2] * 2
