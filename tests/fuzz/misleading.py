"""Inputs that look right and must not be accepted in silence."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.fuzz.case import Case, Content
from tests.fuzz.sound import BENCH, GENERATE
from tests.fuzz.stock import BENCH as RESULT


def _case(line: str, why: str, files: dict[str, Content] | None = None) -> Case:
    return Case("misleading", tuple(line.split()), files or {}, must_fail=why)


def _result(**changes: object) -> dict[str, Content]:
    return {"bench.json": json.dumps(RESULT | changes).encode()}


def _policy(text: str) -> dict[str, Content]:
    return {"static.yaml": f"version: 1\npolicy: static\n{text}\n".encode()}


_RATES = "spec_decode_per_position_acceptance_rates"
_PLAIN = GENERATE.replace("'a b c a b'", "a")
MISLEADING = [
    *(
        _case("policy check static.yaml", "no engine drafts that many tokens", _policy(f"draft_length: {length}"))
        for length in ("10000000000000000000", "1000000000", "-1", "1.5", ".nan", "'3'", "true")
    ),
    *(
        _case("doctor --bench bench.json", "acceptance cannot be that", _result(**{_RATES: rates}))
        for rates in ([float("nan")] * 3, [float("inf"), 1, 1], [-0.5, 0.1, 0.1], [3.0, 0.2, 0.1], ["x"], "x")
    ),
    *(
        _case("doctor --bench bench.json", f"`{name}` cannot be {value}", _result(**{name: value}))
        for name in ("output_throughput", "mean_tpot_ms", "completed", "spec_decode_num_drafts")
        for value in (float("nan"), float("inf"), -1, "x", None, [])
    ),
    *(
        replace(_case(f"doctor --url {{server}}/status/{status}", "no metrics came"), must_not_say="does not answer")
        for status in (401, 403, 404, 500, 503)
    ),
    *(
        _case(
            f"{_PLAIN} --policy goodput --profile profile.json",
            "the profile has nothing to fit",
            {"profile.json": text},
        )
        for text in (b'{"format": 1, "meta": {}, "samples": []}', b'{"format": 1, "meta": {}, "samples": null}')
    ),
    _case("capacity scenario.yaml --set slo={}", "there is no SLO that a load could miss"),
    _case("capacity scenario.yaml --set slo=null", "there is no SLO that a load could miss"),
    _case("tune scenario.yaml --write policy.yaml", "the file exists"),
    _case("trace trace.jsonl", "the file has no step", {"trace.jsonl": b"{}\nx\n\n"}),
    _case("trace trace.jsonl --json", "the file has no step", {"trace.jsonl": b""}),
    _case(f"{BENCH.replace('--json out.json', '--resume results.json')} --seed 7", "the results have another seed"),
    _case(f"{BENCH.replace('--json out.json', '--resume simulated.json')}", "these are no results of a benchmark"),
    _case("simulate scenario.yaml --resume results.json", "these are no results of a simulation"),
    _case("generate a --target models/target --drafter models/target/config.json", "the drafter is a file"),
    _case(f"{_PLAIN} --trace places/folder", "a trace is a file"),
    _case("policy check places/missing", "there is no such file"),
]
