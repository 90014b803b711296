from __future__ import annotations

import json
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec_sim.measurements import USUAL, read_measurements

RESULT = {"request_rate": 2.0, "output_throughput": 867.0, "p99_ttft_ms": 953.0, "median_itl_ms": 38.0, "date": "today"}


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_table_may_use_either_names(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", "run,rate_rps,ttft_p99_ms,mean_tpot_ms,max_concurrent,note\na,0.5,770,29,,x\n")
    (row,) = read_measurements(path)
    assert (row.run, row.rate, row.policy) == ("a", 0.5, None)
    assert row.figures == {"p99_ttft_ms": 770.0, "mean_tpot_ms": 29.0}
    (row,) = read_measurements(path, ["mean_tpot_ms"])
    assert row.figures == {"mean_tpot_ms": 29.0}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(RESULT),
        json.dumps([RESULT, RESULT]),
        f"{json.dumps(RESULT)}\n{json.dumps(RESULT)}\n",
        json.dumps({"meta": {}, "rows": [RESULT]}),
    ],
)
def test_what_vllm_saves_and_appends_is_read(text: str, tmp_path: Path) -> None:
    for row in read_measurements(written(tmp_path, "night.json", text)):
        assert (row.run, row.rate) == ("night", 2.0)
        assert set(row.figures) == {"output_throughput", "p99_ttft_ms"} <= set(USUAL)


def test_the_number_of_clients_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"request_rate": "inf", "max_concurrency": 32, "mean_ttft_ms": 9.0}')
    (read,) = read_measurements(tmp_path / "a.json", ["mean_ttft_ms"])
    assert (read.rate, read.concurrency) == (None, 32)


def test_a_result_may_name_its_run_and_go_by_no_rate(tmp_path: Path) -> None:
    text = json.dumps(RESULT | {"run": "mine", "request_rate": "inf"})
    (row,) = read_measurements(written(tmp_path, "night.json", text))
    assert (row.run, row.rate) == ("mine", None)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "rate_rps,ttft_p99_ms\n1,2\n", "t.csv:2: column `run` is missing"),
        ("t.csv", "run,rate_rps,ttft\na,1,2\n", "t.csv:2: no figure that can be compared"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\na,1,2\na,1,soon\n", "t.csv:3: `p99_ttft_ms` must be a number above 0"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\na,-1,2\n", "`request_rate` must be a number above 0"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\n", "t.csv: no measured run in it"),
        ("t.json", "[]", "t.json: no measured run in it"),
        ("t.json", "[1]", "not a result of `vllm bench serve`"),
        ("t.json", "{", "t.json:1: not JSON"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\na,1," + "9" * 200_000 + "\n", r"t.csv:2: not CSV \(field larger"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\na,1," + "9" * 400 + "\n", r"t.csv:2: `p99_ttft_ms` must be .*999…\)"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\na,1,0\n", "t.csv:2: `p99_ttft_ms` must be a number above 0"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\na,1,nan\n", "t.csv:2: `p99_ttft_ms` must be a number above 0"),
        ("t.csv", "run,rate_rps,ttft_p99_ms\na,1,2,3\n", "t.csv:2: more fields than columns"),
        ("t.csv", "run,run,ttft_p99_ms\na,1,2\n", "t.csv:1: two columns are called `run`"),
        ("t.json", json.dumps(RESULT | {"p99_ttft_ms": True}), r"`p99_ttft_ms` must be a number .*got True"),
        ("t.json", json.dumps(RESULT | {"p99_ttft_ms": [1]}), "`p99_ttft_ms` must be a number"),
        ("t.json", json.dumps(RESULT | {"policy": ["off"]}), "`policy` must be a name"),
        ("t.json", '{"p99_ttft_ms": ' + "9" * 400 + "}", r"t.json:1: not JSON \(the number 9+… is out of range"),
        ("t.json", '{"p99_ttft_ms": NaN}', "NaN is not JSON"),
        ("t.json", "[" * 5000, "t.json:1: not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(name: str, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        read_measurements(written(tmp_path, name, text))


def test_unknown_files_and_figures_are_refused(tmp_path: Path) -> None:
    # No scenario names this file: its path is as the user gave it.
    with pytest.raises(UserError, match=r"no such file of measurements$"):
        read_measurements(tmp_path / "none.csv")
    with pytest.raises(UserError, match="did you mean `p99_ttft_ms`"):
        read_measurements(tmp_path / "none.csv", ["p99_ttft"])
