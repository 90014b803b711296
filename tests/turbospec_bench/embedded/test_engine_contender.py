from __future__ import annotations

from pathlib import Path

import pytest

from turbospec.policy import load_controller
from turbospec_bench.configuration import Configuration
from turbospec_bench.embedded import contender as engine_contender
from turbospec_bench.embedded.contender import EngineContender
from turbospec_bench.embedded.pairs import Pairs
from turbospec_bench.embedded.workloads import BenchRequest, Load
from turbospec_bench.variant import Variant
from turbospec_engine import SamplingParams
from turbospec_engine.lookup import build_lookup


def test_a_look_up_begins_every_run_without_answers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def noted(name: str) -> object:
        built.append(name)
        return build_lookup(name)

    monkeypatch.setattr(engine_contender, "build_lookup", noted)
    pairs, configuration = Pairs(tiny / "models", lookup="ngram"), Configuration("code", "good", 2)
    contender = EngineContender(
        Variant("static-1"),
        pairs.engine_config(configuration),
        pairs.models(configuration),
        load_controller("static-1"),
    )
    load = Load((BenchRequest((5, 6, 5, 6), SamplingParams(max_tokens=6, ignore_eos=True)),) * 3, max_in_flight=2)
    before = len(built)

    figures = [contender.serve(load).figures for _ in range(2)]

    assert built[before:] == ["ngram"] * 2
    assert all("lookup_accepted_length" in own and own["total_output_tokens"] == 18 for own in figures)
