from __future__ import annotations

from pathlib import Path

import pytest

from turbospec import UserError
from turbospec_bench.matrix import select_configurations
from turbospec_bench.vllm.matrix import PAIRS, is_turbospec, variants_of, with_tuning


def names(policies: list[str]) -> list[str]:
    return [variant.policy for variant in variants_of(policies)]


def test_the_whole_table_has_21_configurations() -> None:
    configurations = select_configurations((), (), (), pairings=PAIRS)

    assert len(set(configurations)) == 21
    assert [configuration.name for configuration in configurations if configuration.workload == "random"] == [
        f"random/good/c{c}" for c in (1, 8, 32)
    ]


def test_off_always_competes() -> None:
    assert names([]) == ["off", "static-1", "static-3", "static-5", "static-15", "vllm-table", "adaptive"]
    assert names(["goodput", "off", "goodput"]) == ["off", "goodput"]
    assert [variant.policy for variant in variants_of([]) if is_turbospec(variant)] == ["adaptive"]


def test_a_table_needs_the_fixed_lengths_to_be_tuned_from() -> None:
    assert [variant.policy for variant in with_tuning(variants_of(["vllm-table", "static-7"]))] == [
        *("off", "vllm-table", "static-7"),
        *("static-1", "static-3", "static-5", "static-15"),
    ]
    assert with_tuning(variants_of(["adaptive"])) == variants_of(["adaptive"])


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("adaptiv", "did you mean `adaptive`"),
        ("absent.yaml", "no such policy file"),
        ("static-0", "that is `off`"),
        ("adaptive:after_draft", "no policy is called"),
    ],
)
def test_mistakes(policy: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        variants_of([policy])


@pytest.mark.parametrize("name", ["vllm-table", "static-1"])
def test_a_file_may_not_be_called_like_another_competitor(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.yaml").write_text("version: 1\npolicy: adaptive\n")
    with pytest.raises(UserError, match=f"both be called '{name}'"):
        variants_of(["vllm-table", str(tmp_path / f"{name}.yaml")])
