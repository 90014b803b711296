from __future__ import annotations

import re
from pathlib import Path

import pytest

from turbospec import UserError
from turbospec_bench.configuration import Configuration
from turbospec_bench.matrix import select_configurations
from turbospec_bench.vllm.matrix import NAMED_PAIRS, PAIRS, check_lookups, is_turbospec, variants_of, with_tuning


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


def test_repeating_text_is_measured_only_where_it_is_named() -> None:
    chosen = select_configurations(["records"], (), [1], pairings=PAIRS, named=NAMED_PAIRS)

    assert [configuration.drafter for configuration in chosen] == ["eagle3", "n-gram"]
    assert select_configurations((), ["eagle3"], [1], pairings=PAIRS, named=NAMED_PAIRS) == (
        Configuration("text", "eagle3", 1),
    )


def test_a_policy_competes_with_a_lookup_beside_the_drafter_and_without(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("version: 1\npolicy: adaptive\n")

    variants = variants_of(["adaptive", "adaptive+ngram", str(mine), f"{mine}+ngram", "ngram-5"])

    assert [variant.name for variant in variants] == [
        *("off", "adaptive", "adaptive+ngram", "mine", "mine+ngram", "ngram-5")
    ]
    assert [variant.lookup for variant in variants] == [False, False, True, False, True, False]
    assert [variant.name for variant in variants if not is_turbospec(variant)] == ["off", "ngram-5"]
    check_lookups([Configuration("text", "eagle3", 1)], variants)
    both = [Configuration("text", name, 1) for name in ("eagle3", "n-gram")]
    check_lookups(both, variants_of(["adaptive"]))
    for name in ("adaptive+ngram", "ngram-5"):
        with pytest.raises(UserError, match=rf"'{re.escape(name)}' is for drafters other than n-gram; .* --drafter"):
            check_lookups(both, variants_of([name]))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("adaptiv", "did you mean `adaptive`"),
        ("absent.yaml", "no such policy file"),
        ("static-0", "that is `off`"),
        ("ngram-0", "that is `off`"),
        ("ngram-three", "no policy is called"),
        ("static-3+ngram", "only policies of TurboSpec"),
        ("vllm-table+ngram", "only policies of TurboSpec"),
        ("adaptive+suffix", "no policy is called"),
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
