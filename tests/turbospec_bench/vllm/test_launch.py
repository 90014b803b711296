from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turbospec_bench.variant import Variant
from turbospec_bench.vllm.launch import Launch, Launches

LAUNCHES = Launches(Path("/models"), "float32", 32)


def config(launch: Launch) -> dict[str, Any]:
    return json.loads(launch.arguments[launch.arguments.index("--speculative-config") + 1])


def test_off_has_no_drafter_and_is_the_same_for_all() -> None:
    off = LAUNCHES.of("good", Variant("off", None))

    assert off == LAUNCHES.of("n-gram", Variant("off", None))
    assert "--speculative-config" not in off.arguments
    assert off.arguments[:3] == ("/models/target", "--dtype", "float32")
    assert "--no-enable-prefix-caching" in off.arguments


def test_servers_run_with_cuda_graphs_and_share_a_gpu() -> None:
    shared = Launches(Path("/models"), "float32", 32, on_gpu=True).of("good", Variant("static-3", None)).arguments
    alone = LAUNCHES.of("good", Variant("static-3", None)).arguments

    assert "--enforce-eager" in alone
    assert "--enforce-eager" not in shared
    assert "--gpu-memory-utilization" in shared


@pytest.mark.parametrize(
    ("drafter", "expected"),
    [
        ("good", {"method": "draft_model", "model": "/models/drafter"}),
        ("eagle3-untrained", {"method": "eagle3", "model": "/models/eagle3-untrained"}),
        ("peagle", {"method": "eagle3", "model": "/models/peagle", "parallel_drafting": True}),
        ("dflash", {"method": "dflash", "model": "/models/dflash"}),
        ("n-gram", {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
    ],
)
def test_a_fixed_length_is_vllms_own(drafter: str, expected: dict[str, Any]) -> None:
    launch = LAUNCHES.of(drafter, Variant("static-3", None))

    assert config(launch) == expected | {"num_speculative_tokens": 3}
    assert launch.environment == {}
    assert launch.name == f"{drafter}-static-3"


@pytest.mark.parametrize(("lengths", "longest"), [([(1, 2, 5), (3, 32, 0)], 5), ([(1, 32, 0)], 1)])
def test_a_table_goes_up_to_its_longest_draft(lengths: list[tuple[int, int, int]], longest: int) -> None:
    made = config(LAUNCHES.of("good", Variant("vllm-table", None), lengths))

    assert made["num_speculative_tokens"] == longest
    assert made["num_speculative_tokens_per_batch_size"] == [[*line] for line in lengths]


def test_vllms_own_lookup_takes_the_drafters_place() -> None:
    launch = LAUNCHES.of("eagle3", Variant("ngram-5", None))

    assert config(launch) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    assert launch.environment == {}
    assert launch.name == "eagle3-ngram-5"


def test_a_lookup_beside_the_drafter_is_a_setting_of_turbospec() -> None:
    alone, beside = (LAUNCHES.of("eagle3", Variant("adaptive", None, lookup=lookup)) for lookup in (False, True))

    assert beside.environment == {**alone.environment, "TURBOSPEC_LOOKUP": "ngram"}
    assert beside.arguments == alone.arguments
    assert (alone.name, beside.name) == ("eagle3-adaptive", "eagle3-adaptive+ngram")


def test_a_policy_is_named_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\npolicy: adaptive\n")
    launch = LAUNCHES.of("weak", Variant(str(tmp_path / "mine.yaml"), None))

    assert launch.name == "weak-mine"
    assert launch.environment == {"TURBOSPEC_POLICY": str(tmp_path / "mine.yaml")}
    assert config(launch)["num_speculative_tokens"] == 15
