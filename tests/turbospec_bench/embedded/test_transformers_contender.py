from __future__ import annotations

from pathlib import Path

import pytest

from turbospec_bench.configuration import Configuration
from turbospec_bench.embedded.pairs import Pairs
from turbospec_bench.embedded.transformers_contender import DRAFT_TOKENS, HuggingFacePair, TransformersContender
from turbospec_bench.embedded.workloads import BenchRequest, Load
from turbospec_bench.matrix import TRANSFORMERS_POLICIES
from turbospec_bench.variant import Variant
from turbospec_engine import SamplingParams


@pytest.fixture(scope="module")
def pair(tiny: Path) -> HuggingFacePair:
    return Pairs(tiny / "models").hugging_face(Configuration("code", "good", 1))


@pytest.mark.parametrize("policy", TRANSFORMERS_POLICIES)
def test_every_schedule_generates_exactly_what_was_asked(pair: HuggingFacePair, policy: str) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, seed=5, ignore_eos=True)
    load = Load((BenchRequest((5, 6, 7, 8), params),) * 2, max_in_flight=1)

    figures = TransformersContender(Variant(policy), pair).serve(load).figures

    assert figures["total_output_tokens"] == 2 * 24
    assert figures["total_input_tokens"] == 2 * 4
    assert 0 < figures["mean_ttft_ms"] < figures["mean_e2el_ms"]


@pytest.mark.parametrize("schedule", ["heuristic", "constant"])
def test_the_heuristic_schedule_goes_on_where_the_request_before_it_ended(pair: HuggingFacePair, schedule: str) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=5, ignore_eos=True)
    contender = TransformersContender(Variant(f"transformers-{schedule}"), pair)

    contender.serve(Load((BenchRequest((5, 6, 7, 8), params),), max_in_flight=1))

    assert (contender._draft_tokens != DRAFT_TOKENS) == (schedule == "heuristic")
