from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.turbospec_sim.scenarios import BASE
from turbospec import UserError
from turbospec_sim.workload.config import Workload
from turbospec_sim.workload.offered import offered_requests

CHAT = BASE["workload"]["classes"][0]


def workload(**fields: Any) -> Workload:
    made = {"requests": 3000, "arrivals": {"process": "poisson"}, "classes": [CHAT]} | fields
    return Workload.model_validate_json(json.dumps(made), strict=True)


def test_a_seed_gives_the_same_requests_at_any_rate() -> None:
    slow, fast = (offered_requests(workload(), rate, 5) for rate in (1.0, 4.0))
    assert (slow["prompt_tokens"] == fast["prompt_tokens"]).all()
    assert slow["sent"] == pytest.approx(4.0 * fast["sent"])
    other = offered_requests(workload(), 1.0, 6)
    assert (slow["prompt_tokens"] != other["prompt_tokens"]).any()


def test_classes_have_their_shares_and_leave_each_other_alone() -> None:
    two = workload(classes=[CHAT | {"share": 3}, CHAT | {"name": "b", "share": 1}])
    drawn, alone = offered_requests(two, 1.0, 0), offered_requests(workload(), 1.0, 0)
    assert (drawn["class_id"] == 1).mean() == pytest.approx(0.25, abs=0.03)
    first = drawn["class_id"] == 0
    assert (drawn["prompt_tokens"][first] == alone["prompt_tokens"][first]).all()


def test_an_output_ends_at_the_limit_of_its_class(tmp_path: Path) -> None:
    both = [CHAT | {"max_tokens": 30}, CHAT | {"name": "b"}]
    drawn = offered_requests(workload(classes=both), 1.0, 0)
    assert [drawn["output_tokens"][drawn["class_id"] == kind].max() for kind in (0, 1)] == [30, 60]
    file = tmp_path / "trace.jsonl"
    file.write_text('{"arrival_time": 0, "prompt_tokens": 7, "output_tokens": 400}\n')
    trace = {"process": "trace", "file": str(file)}
    recorded = offered_requests(workload(requests=None, arrivals=trace, classes=both), None, 0)
    assert recorded["output_tokens"].tolist() == [30]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_trace_is_played_in_the_order_of_its_times(form: str, tmp_path: Path) -> None:
    file = tmp_path / f"trace.{form}"
    lines = [(12.5, 30, 4, "chat"), (10.0, 20, 3, "b")]
    if form == "csv":
        rows = "".join(f"{','.join(map(str, line))}\n" for line in lines)
        file.write_text("arrival_time,prompt_tokens,output_tokens,class\n" + rows)
    else:
        names = ("arrival_time", "prompt_tokens", "output_tokens", "class")
        file.write_text("".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines))
    trace = {"process": "trace", "file": str(file)}
    drawn = offered_requests(workload(requests=None, arrivals=trace, classes=[CHAT, CHAT | {"name": "b"}]), None, 0)
    assert drawn["sent"].tolist() == [0.0, 2.5]
    assert drawn["prompt_tokens"].tolist() == [20, 30]
    assert drawn["class_id"].tolist() == [1, 0]
    assert np.isnan(drawn["latency"]).all()


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_trace_may_come_from_a_spreadsheet(form: str, tmp_path: Path) -> None:
    file = tmp_path / f"trace.{form}"
    line = '{"arrival_time": 1, "prompt_tokens": 7, "output_tokens": 3}\r\n\r\n'
    if form == "csv":
        line = "arrival_time,prompt_tokens,output_tokens\r\n1,7,3.0\r\n"
    file.write_bytes(b"\xef\xbb\xbf" + line.encode())
    (drawn,) = offered_requests(workload(requests=None, arrivals={"process": "trace", "file": str(file)}), None, 0)
    assert (drawn["prompt_tokens"], drawn["output_tokens"]) == (7, 3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"arrival_time": 0, "prompt_tokens": 3}', ":1: `output_tokens` is missing"),
        (
            '{"arrival_time": 1e13, "prompt_tokens": 3, "output_tokens": 1}',
            ":1: `arrival_time` must be",
        ),
        ('{"arrival_time": NaN, "prompt_tokens": 3, "output_tokens": 1}', ":1: not JSON"),
        ('{"arrival_time": true, "prompt_tokens": 3, "output_tokens": 1}', ":1: `arrival_time` must be"),
        ('{"arrival_time": 0, "prompt_tokens": 1000000000000, "output_tokens": 1}', ":1: `prompt_tokens` must be"),
        ('{"arrival_time": 0, "prompt_tokens": [], "output_tokens": 1}', ":1: `prompt_tokens` must be"),
        ("[" * 5000, ":1: not JSON"),
        ('{"arrival_time": -1, "prompt_tokens": 3, "output_tokens": 1}', ":1: `arrival_time` must be"),
        ('{"arrival_time": 0, "prompt_tokens": "x", "output_tokens": 1}', ":1: `prompt_tokens` must be"),
        ('{"arrival_time": 0, "prompt_tokens": 1.5, "output_tokens": 1}', ":1: `prompt_tokens` must be a whole number"),
        (
            '{"arrival_time": 0, "prompt_tokens": 1, "output_tokens": 1e300}',
            ":1: `output_tokens` must be a number from 1 to 1e",
        ),
        ('{"arrival_time": 0, "prompt_tokens": 1, "output_tokens": 1, "class": "c"}', "class `c` is not one"),
        ('{"arrival_time": 0, "prompt_tokens": 1, "output_tokens": 1, "class": ["c"]}', "class .* is not one"),
        ("", "no requests"),
        ('{"arrival_time": 0, "prompt_tokens": 1, "output_tokens": 1}', "1 requests in it, but .* asks for 2"),
    ],
)
def test_a_broken_trace_names_its_line(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(line)
    requests = 2 if "asks for 2" in words else None
    with pytest.raises(UserError, match=words):
        offered_requests(workload(requests=requests, arrivals={"process": "trace", "file": str(file)}), None, 0)
